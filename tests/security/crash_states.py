"""Which states a power cut can leave, from the system calls of a program: a file system that forgets what it may.

A program is traced (`strace`) while it writes below a directory. What it did becomes effects: bytes of a file, its
length, an entry of a directory. An effect is safe once a sync of its file or directory came after it; until then a
power cut keeps it or not, whatever it does with the others. (A file's sync saves its bytes, not its name; a rename
happens or does not.)
"""

from __future__ import annotations

import itertools
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MOST_SUBSETS_OF = 5
RANDOM_SUBSETS = 6
CALLS = (
    "openat,creat,write,pwrite64,writev,lseek,ftruncate,rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,"
    "unlinkat,rmdir,mkdir,mkdirat,fsync,fdatasync,sendfile,copy_file_range,fallocate,close"
)
_LINE = re.compile(r"^(\d+)\s+(?:<\.\.\. (\w+) resumed>(.*)|(.*))$", re.DOTALL)
_RESULT = re.compile(r"^(\w+)\((.*)\)\s+= (-?\d+|\?)(?:<(.*?)>)?[^=]*$", re.DOTALL)
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_FD = re.compile(r"(\d+|AT_FDCWD)<(.*?)>(?=,|\s*$|\))")


@dataclass(frozen=True)
class Effect:
    """Something that a power cut keeps or not.

    Attributes:
        where: the inodes whose sync saves it.
        changes: ("entry", directory, name, inode or None), ("data", inode, offset, bytes) or ("size", inode, length).
    """

    where: frozenset[int]
    changes: tuple[tuple, ...]


@dataclass
class History:
    """What a program did: effects in order, with syncs and acknowledgements between them."""

    events: list[tuple[str, object]] = field(default_factory=list)  # ("effect", Effect), ("sync", inode), ("ack", text)
    links: dict[int, str] = field(default_factory=dict)  # targets of symbolic links
    directories: set[int] = field(default_factory=lambda: {0})


def traced(script: str, roots: Sequence[Path], log: Path) -> list[History]:
    """Run a Python script once, which writes below directories; what happened below each of them.

    On its output it says `ACK <directory> <text>`. One run, since under a trace the imports take most of the time.
    """
    command = [
        "strace",
        "-f",
        "--seccomp-bpf",
        "-qq",
        "-y",
        "-xx",
        "-s",
        "100000000",
        "-e",
        f"trace={CALLS}",
        "-o",
        str(log),
    ]
    command += [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return [_Reader(root).read(log) for root in roots]


class _Reader:
    """Follows a trace with the names that files have meanwhile."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._names: dict[int, dict[str, int]] = {0: {}}
        self._inodes = itertools.count(1)
        self._positions: dict[str, int] = {}
        self.history = History()

    def read(self, log: Path) -> History:
        started: dict[str, str] = {}
        for line in log.read_text().splitlines():
            pid, resumed, rest, whole = _LINE.match(line).groups()
            if whole is not None and whole.endswith("<unfinished ...>"):
                started[pid] = whole.removesuffix("<unfinished ...>")
                continue
            text = started.pop(pid) + rest if resumed else whole
            if (found := _RESULT.match(text)) and found[3] != "?" and int(found[3]) >= 0:
                self._call(found[1], found[2], int(found[3]), _plain(found[4] or ""))
        return self.history

    def _call(self, name: str, args: str, result: int, path: str) -> None:
        texts = [bytes.fromhex(t.replace("\\x", "")) for t in _TEXT.findall(args)]
        fds = [(number, _plain(target)) for number, target in _FD.findall(args)]
        if name in ("write", "writev") and fds[0][0] == "1":
            for said in b"".join(texts).decode().splitlines():
                if said.startswith(f"ACK {self._root} "):
                    self.history.events.append(("ack", said.removeprefix(f"ACK {self._root} ")))
            return
        if name in ("openat", "creat"):
            self._open(path, args, str(result))
        elif name in ("write", "writev", "pwrite64", "sendfile", "copy_file_range", "ftruncate", "fallocate", "lseek"):
            self._content(name, args, result, texts, fds)
        elif name in ("fsync", "fdatasync"):
            if (inode := self._find(fds[0][1])) is not None:
                self.history.events.append(("sync", inode))
        elif name not in ("close",):
            self._named(name, args, [path.decode() for path in texts], fds)

    def _open(self, path: str, args: str, fd: str) -> None:
        self._positions[fd] = 0
        inode = self._find(path)
        if inode is None and "O_CREAT" in args and self._inside(path):
            self._link(path, next(self._inodes))
        elif inode is not None and "O_TRUNC" in args:
            self._effect({inode}, ("size", inode, 0))

    def _content(self, name: str, args: str, result: int, texts: list[bytes], fds: list[tuple[str, str]]) -> None:
        fd, path = fds[0] if name != "copy_file_range" else fds[1]
        if name == "lseek":
            self._positions[fd] = result
            return
        inode = self._find(path)
        if inode is None:
            return
        if name in ("ftruncate", "fallocate"):
            numbers = [int(n) for n in re.findall(r", (\d+)", args)]
            self._effect({inode}, ("size", inode, numbers[-1] if name == "ftruncate" else None))
            return
        offset = int(args.rpartition(",")[2]) if name == "pwrite64" else self._positions.get(fd, 0)
        if name in ("sendfile", "copy_file_range"):
            source = Path(fds[1][1] if name == "sendfile" else fds[0][1]).read_bytes()
            data = source[offset : offset + result]
        else:
            data = b"".join(texts)[:result]
        if name != "pwrite64":
            self._positions[fd] = offset + len(data)
        self._effect({inode}, ("data", inode, offset, data))

    def _named(self, name: str, args: str, paths: list[str], fds: list[tuple[str, str]]) -> None:
        bases = [target for _, target in fds] if "at" in name else []
        if name == "symlinkat":
            paths, bases = [paths[1], paths[0]], bases
        full = [path if path.startswith("/") else f"{bases[min(i, len(bases) - 1)] if bases else ''}/{path}"
                for i, path in enumerate(paths)]  # fmt: skip
        if not self._inside(full[-1] if name.startswith(("rename", "link")) else full[0]):
            return
        if name.startswith("rename"):
            (source, old), (target, new) = self._parent(full[0]), self._parent(full[1])
            inode = self._names[source].pop(old)
            self._names[target][new] = inode
            self._effect({source, target}, ("entry", source, old, None), ("entry", target, new, inode))
        elif name.startswith("mkdir"):
            inode = next(self._inodes)
            self._names[inode] = {}
            self.history.directories.add(inode)
            self._link(full[0], inode)
        elif name.startswith("symlink"):
            inode = next(self._inodes)
            self.history.links[inode] = paths[1] if name == "symlinkat" else paths[0]
            self._link(full[0] if name == "symlinkat" else full[1], inode)
        elif name.startswith("link"):
            self._link(full[1], self._find(full[0]))
        else:  # unlink, unlinkat, rmdir
            directory, last = self._parent(full[0])
            del self._names[directory][last]
            self._effect({directory}, ("entry", directory, last, None))

    def _link(self, path: str, inode: int) -> None:
        directory, name = self._parent(path)
        self._names[directory][name] = inode
        self._effect({directory}, ("entry", directory, name, inode))

    def _effect(self, where: set[int], *changes: tuple) -> None:
        self.history.events.append(("effect", Effect(frozenset(where), changes)))

    def _inside(self, path: str) -> bool:
        return path.startswith(self._root + "/") and not path.endswith("-shm")  # SQLite makes that anew

    def _find(self, path: str) -> int | None:
        if path == self._root:
            return 0
        if not self._inside(path):
            return None
        inode = 0
        for part in Path(path).relative_to(self._root).parts:
            if inode not in self._names or part not in self._names[inode]:
                return None  # removed, and still open
            inode = self._names[inode][part]
        return inode

    def _parent(self, path: str) -> tuple[int, str]:
        path = path.rstrip("/")
        inode = self._find(str(Path(path).parent))
        assert inode is not None, f"{path} has no directory"
        return inode, Path(path).name


def _plain(text: str) -> str:
    return bytes.fromhex(text.replace("\\x", "")).decode() if text.startswith("\\x") else text


Tree = dict[str, bytes | None | str]
"""By path below the root: a file's bytes, None for a directory, a text for a symbolic link."""


def tree_of(history: History, effects: list[Effect]) -> Tree:
    """What is there after some effects."""
    entries: dict[int, dict[str, int]] = {}
    contents: dict[int, bytearray] = {}
    for effect in effects:
        for kind, inode, *rest in effect.changes:
            if kind == "entry":
                name, target = rest
                names = entries.setdefault(inode, {})
                names.pop(name, None)
                if target is not None:
                    names[name] = target
            elif kind == "data":
                offset, data = rest
                held = contents.setdefault(inode, bytearray())
                held.extend(b"\0" * (offset - len(held)))
                held[offset : offset + len(data)] = data
            elif rest[0] is not None:
                held = contents.setdefault(inode, bytearray())
                del held[rest[0] :]
                held.extend(b"\0" * (rest[0] - len(held)))
    found: Tree = {}

    def walk(inode: int, path: str, above: frozenset[int]) -> None:
        for name, target in entries.get(inode, {}).items():
            where = f"{path}/{name}".lstrip("/")
            if target in history.links:
                found[where] = history.links[target]
            elif target in history.directories:
                found[where] = None
                if target not in above:
                    walk(target, where, above | {target})
            else:
                found[where] = bytes(contents.get(target, b""))

    walk(0, "", frozenset())
    return found


def crash_states(history: History, after: str = "", seed: int = 0) -> Iterator[tuple[Tree, list[str]]]:
    """Every state that a power cut may leave, once, with what had been acknowledged by then.

    Cuts just before a sync are enough, and at the end: what was done since the last one is kept or not in all ways, so
    the cuts between are among them. Of many effects that are not safe: all, none, each name alone and each left out,
    beginnings and ends, and some at random.

    Args:
        history: what was done.
        after: the acknowledgement before which no state is asked for.
        seed: of what is chosen at random.
    """
    chance = random.Random(seed)
    effects: list[Effect] = []
    safe: list[bool] = []
    said: list[str] = []
    seen: set[int] = set()
    synced: dict[int, int] = {}
    for kind, value in [*history.events, ("sync", -1)]:
        if kind == "effect":
            effects.append(value)
            safe.append(False)
        elif kind == "ack":
            said.append(value)
        else:
            pending = [index for index, is_safe in enumerate(safe) if not is_safe]
            for kept in _subsets(pending, effects, chance) if not after or after in said else ():
                chosen = [effect for index, effect in enumerate(effects) if safe[index] or index in kept]
                tree = tree_of(history, chosen)
                key = hash((tuple(sorted((name, str(value)) for name, value in tree.items())), len(said)))
                if key not in seen:
                    seen.add(key)
                    yield tree, list(said)
            synced[value] = len(effects)
            for index in pending:
                safe[index] = all(synced.get(inode, 0) > index for inode in effects[index].where)


def _subsets(pending: list[int], effects: list[Effect], chance: random.Random) -> Iterator[frozenset[int]]:
    if len(pending) <= MOST_SUBSETS_OF:
        for size in range(len(pending) + 1):
            yield from map(frozenset, itertools.combinations(pending, size))
        return
    everything = frozenset(pending)
    yield from (everything, frozenset())
    for index in pending:
        if effects[index].changes[0][0] == "entry":
            yield from (frozenset({index}), everything - {index})
    for place in range(1, len(pending), max(1, len(pending) // 4)):
        yield from (frozenset(pending[:place]), frozenset(pending[place:]))
    for _ in range(RANDOM_SUBSETS):
        yield frozenset(one for one in pending if chance.random() < 0.5)


def lay_out(tree: Tree, root: Path) -> None:
    """Make the files of a state."""
    for name in sorted(tree):
        path, value = root / name, tree[name]
        if value is None:
            path.mkdir()
        elif isinstance(value, str):
            path.symlink_to(value)
        else:
            path.write_bytes(value)


def what_is_there(root: Path) -> Tree:
    """The files below a directory, but for what SQLite makes anew."""
    found: Tree = {}
    for path in sorted(root.rglob("*")):
        if not path.name.endswith("-shm"):
            name = path.relative_to(root).as_posix()
            found[name] = str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else None
    return found
