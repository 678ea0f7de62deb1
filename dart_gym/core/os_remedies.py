"""What a person can do about an error of the operating system, by its number: one table for all messages."""

import errno
import os
import select
import stat
import sys

_SPACE = "free some space there, or choose a directory on another disk"
_FILES = "raise `ulimit -n`: each desktop and each connection takes some open files"
_PROCESSES = "raise `ulimit -u` or the control group's pids.max, or run fewer desktops"
_RIGHTS = "choose a directory that this user may write to"

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk, and of a user's quota that is used up."""
_REMEDIES = {
    errno.ENOSPC: f"the disk is full: {_SPACE}",
    errno.EDQUOT: f"the user's quota is used up: {_SPACE}",
    errno.EMFILE: f"this process has too many open files: {_FILES}",
    errno.ENFILE: "the machine has too many open files: raise fs.file-max, or run fewer desktops",
    errno.EAGAIN: f"no further process or thread may be started now: {_PROCESSES}",
    errno.ENOMEM: "the machine is short of memory: run fewer desktops, or end other programs",
    errno.EFBIG: "files of that size are forbidden: raise `ulimit -f`",
    errno.EROFS: f"the file system is read-only: {_RIGHTS}",
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.ENOTDIR: "a file is in the way: remove it, or choose another directory",
    errno.EEXIST: "a file is in the way: remove it, or choose another directory",
    errno.ENAMETOOLONG: "choose a directory with a shorter path",
}


def remedy(error: OSError) -> str | None:
    """Return the next step after an error of the operating system; None where nothing is known about its number."""
    return _REMEDIES.get(error.errno or 0)


def lost_output(error: BaseException) -> str:
    """Return what to say where it is standard output that cannot be written; "" where the error is another one."""
    if not isinstance(error, OSError) or error.filename or error.errno not in FULL:
        return ""
    if not _output_is_full():
        return ""
    return f"cannot write to standard output: {error.strerror}; free some space there, or send it elsewhere"


def _output_is_full() -> bool:
    try:
        sys.stdout.flush()  # what could not be written is in its buffer still, where it has one
    except OSError:
        return True
    try:
        where = sys.stdout.fileno()
        kind = os.fstat(where)
        if stat.S_ISREG(kind.st_mode):
            return os.fstatvfs(where).f_bavail == 0
        return stat.S_ISCHR(kind.st_mode) and kind.st_rdev == os.stat("/dev/full").st_rdev
    except (OSError, ValueError):  # it is no file
        return False


def output_is_gone() -> bool:
    """Return whether nobody reads standard output any more."""
    try:
        looks = select.poll()
        looks.register(sys.stdout.fileno(), 0)
        return bool(looks.poll(0))  # with no event asked for, only that the other end is closed is reported
    except (OSError, ValueError, AttributeError):  # it is no file, or there is none
        return False
