"""The `/etc` of sandboxes: a copy of what Debian's applications read of this machine's.

A copy, since each part that is shown by itself costs a mount, of which a sandbox would need eighty.

Invariants:
    - What is not named here is not in it, nor what not everybody may read. The only users in it are root and the
      sandbox's own.
    - It is made once for as long as the machine's settings stay as they are, and is whole when it has its name.
"""

import contextlib
import functools
import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from dart_gym.desktops.confinement.file_removal import remove_tree
from dart_gym.desktops.confinement.user_ids import let_read

_NAMES = tuple(
    """
    alternatives ld.so.cache ld.so.conf ld.so.conf.d nsswitch.conf host.conf gai.conf hosts services protocols networks
    rpc localtime timezone locale.alias locale.gen locale.conf default/locale default/keyboard os-release
    debian_version lsb-release issue mtab shells skel profile profile.d bash.bashrc bash_completion
    bash_completion.d inputrc environment login.defs terminfo xattr.conf magic magic.mime mime.types mailcap
    mailcap.order wgetrc papersize libpaper.d paperspecs
    X11 xdg fonts gtk-2.0 gtk-3.0 gtk-4.0 Trolltech.conf dconf dbus-1 glvnd vulkan OpenCL drirc vdpau_wrapper.cfg
    alsa asound.conf pulse openal pipewire sane.d cups/client.conf ImageMagick-6 ImageMagick-7 ghostscript
    chromium chromium.d opt/chrome opt/edge firefox firefox-esr thunderbird libreoffice gimp vlc java-*-openjdk
    python3 python3.* perl vim emacs nanorc dictionaries-common hunspell aspell enchant sgml xml speech-dispatcher
    ssl/certs ssl/openssl.cnf ca-certificates ca-certificates.conf debuginfod dpkg/origins
    """.split()
)
_ACCOUNTS = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/bash\n",
    "group": "root:x:0:\nuser:x:1000:\n",
    "machine-id": "",  # each sandbox has its own in its place
}
_ETC = Path("/etc")


def kept_place() -> Path:
    """Return the directory of what all desktops of this user have in common, and what outlives them."""
    if os.geteuid() == 0:
        return Path("/run/dart-gym")
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "dart-gym", "sandboxes")


def kept_directory() -> Path:
    """Return `kept_place`, which is there."""
    path = kept_place()
    path.mkdir(mode=0o755, parents=True, exist_ok=True)
    if os.geteuid() == 0:
        path.chmod(0o755)  # whatever root's umask was when it was made
    return path


def settings_copy(added: Mapping[str, str] | None = None) -> Path:
    """The copy, in a directory of this user's own; made again when somebody has removed it.

    Args:
        added: path below `/etc` -> text of further files.

    Raises:
        OSError: it cannot be made.
    """
    files = tuple(sorted({**(added or {}), **_ACCOUNTS}.items()))
    place = made_copy(files)
    if not place.is_dir():
        made_copy.cache_clear()
        place = made_copy(files)
    return place


@functools.cache
def made_copy(files: tuple[tuple[str, str], ...]) -> Path:
    """Make the copy, once per process and content, and return its directory."""
    entries = list(_entries())
    digest = hashlib.sha256(repr([_NAMES, files, entries]).encode()).hexdigest()[:16]
    base = kept_directory()
    place = base / f"etc-{digest}"
    if place.is_dir():
        return place
    making = base / f"{place.name}.{os.getpid()}"
    remove_tree(making)
    try:
        _copy(making, [path for path, *_ in entries], files)
        with contextlib.suppress(FileExistsError, OSError):
            making.rename(place)
    finally:
        remove_tree(making)
    if not place.is_dir():
        raise OSError(f"{place} cannot be made")
    return place


def _entries() -> Iterator[tuple[str, int, int]]:
    """Path, time of change and size of everything that is shown."""
    todo = sorted({path for name in _NAMES for path in _ETC.glob(name)})
    while todo:
        path = todo.pop()
        with contextlib.suppress(OSError):  # it went just now
            found = path.lstat()
            if stat.S_ISDIR(found.st_mode):
                if found.st_mode & 0o005 == 0o005:
                    yield str(path), found.st_mtime_ns, 0
                    todo += sorted(path.iterdir())
            elif stat.S_ISLNK(found.st_mode) or (stat.S_ISREG(found.st_mode) and found.st_mode & 0o004):
                yield str(path), found.st_mtime_ns, found.st_size


def _copy(making: Path, paths: list[str], files: Iterable[tuple[str, str]]) -> None:
    making.mkdir(mode=0o755)
    for path in paths:
        source, target = Path(path), making / Path(path).relative_to(_ETC)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            target.symlink_to(os.readlink(source))
        elif source.is_dir():
            target.mkdir(exist_ok=True)
        else:
            shutil.copyfile(source, target)
            target.chmod(0o755 if source.stat().st_mode & 0o001 else 0o644)
    for name, text in files:
        (making / name).parent.mkdir(parents=True, exist_ok=True)
        (making / name).write_text(text)
    let_read(making)
