"""What a person can do about an error of the operating system, by its number: one table for all messages."""

import errno

_SPACE = "free some space there, or choose a directory on another disk"
_FILES = "raise `ulimit -n`: each desktop and each connection takes some open files"
_PROCESSES = "raise `ulimit -u` or the control group's pids.max, or run fewer desktops"
_RIGHTS = "choose a directory that this user may write to"

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
