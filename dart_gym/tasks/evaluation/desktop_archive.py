"""What a desktop hands over for its evaluation, unpacked into a tree that holds nothing else.

It runs in the evaluator's sandbox, by the evaluator's Python: it uses the standard library only and imports nothing of
this package.

Invariants:
    - An archive comes from the desktop, and any program there may have replaced it: nothing in it is believed. Regular
      files, folders and links alone are taken, below the desktop's own folders, in bounded number and size.
    - No name leads out of the tree, and none into what is not the desktop's (`apart`). A link is made last, and only
      where it ends in the tree, so that nothing is written or read through one.
"""

import os
import posixpath
import tarfile

FOLDERS = ("home/user", "tmp")
MOST_BYTES = 1 << 30
MOST_MEMBERS = 200_000
LONGEST_NAME = 1024
DEEPEST = 64
CHUNK = 1 << 20


class Spoiled(Exception):
    """What the desktop handed over is no archive of its files, or more than there is room for."""


def plain_name(name, apart=()):
    """The name of a member as parts of a path below the root; None where it is not the desktop's to give."""
    parts = name.rstrip("/").split("/")
    if parts[0] == ".":
        parts = parts[1:]
    if not parts or len(name) > LONGEST_NAME or len(parts) > DEEPEST or "\0" in name:
        return None
    if any(part in ("", ".", "..") for part in parts):
        return None
    path = "/".join(parts)
    if not any(path == folder or path.startswith(folder + "/") for folder in FOLDERS):
        return None
    if any(path == folder or path.startswith(folder + "/") for folder in apart):
        return None
    return path


def unpack(archive, root, apart=(), most_bytes=MOST_BYTES):
    """Unpack what is the desktop's below `root`; return how many members were left out. Raises `Spoiled`."""
    left_out = 0
    links = []
    size = 0
    count = 0
    try:
        with tarfile.open(archive, "r:") as members:
            for member in members:
                count += 1
                if count > MOST_MEMBERS:
                    raise Spoiled(f"the desktop has more than {MOST_MEMBERS} files")
                path = plain_name(member.name, apart)
                if path is None or member.issparse():
                    left_out += 1
                elif member.isdir():
                    left_out += not _make_folder(root, path)
                elif member.issym():
                    links.append((path, member.linkname))
                elif member.type in (tarfile.REGTYPE, tarfile.AREGTYPE):
                    size += member.size
                    if size > most_bytes:
                        raise Spoiled(f"the desktop's files are larger than {most_bytes} bytes")
                    left_out += not _write(root, path, members.extractfile(member), member)
                else:
                    left_out += 1
                members.members = []  # type: ignore[attr-defined]  # it would keep them all
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise Spoiled(f"the desktop's files could not be read: {error}") from None
    except OSError as error:
        raise Spoiled(f"the desktop's files do not fit: {error}") from None
    return left_out + _link(root, links, apart)


def _make_folder(root, path):
    try:
        os.makedirs(os.path.join(root, path), mode=0o755, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        return False
    return True


def _write(root, path, source, member):
    """Write a new file; one that is there already, such as by a second member of its name, stays as it is."""
    if not _make_folder(root, posixpath.dirname(path)):
        return False
    target = os.path.join(root, path)
    try:
        descriptor = os.open(
            target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644 | (member.mode & 0o111)
        )
    except (FileExistsError, IsADirectoryError):
        return False
    with open(descriptor, "wb") as file:
        while chunk := source.read(CHUNK):
            file.write(chunk)
    os.utime(target, (max(0, min(member.mtime, 1 << 33)),) * 2)
    return True


def _link(root, links, apart):
    """Make the links that end in the tree; return how many were left out."""
    base, made = os.path.realpath(root), []
    usable = [link for link in links if _make_folder(root, posixpath.dirname(link[0]))]  # before there is any link
    for path, target in usable:
        place = os.path.join(base, path)
        if os.path.realpath(os.path.dirname(place)) != os.path.dirname(place):
            continue  # a link leads there
        if not target or "\0" in target or len(target) > LONGEST_NAME:
            continue
        where = os.path.join(base, target.lstrip("/")) if target.startswith("/") else target
        try:
            os.symlink(where, place)
        except (FileExistsError, IsADirectoryError):
            continue
        made.append(place)
    while leading_out := [place for place in made if not _stays(base, place, apart)]:
        for place in leading_out:  # one that is gone may have been what another went through
            os.unlink(place)
            made.remove(place)
    return len(links) - len(made)


def _stays(base, place, apart):
    return plain_name(os.path.relpath(os.path.realpath(place), base), apart) is not None
