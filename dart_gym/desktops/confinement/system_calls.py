"""Which system calls programs in a sandbox may make, as a filter that the kernel runs (seccomp, by libseccomp).

An allow-list: what Debian's applications and Chromium need is named here, and nothing else is allowed. A call that this
kernel and libseccomp know but that is not named is refused with EPERM; one that they do not know fails with ENOSYS, as
on a kernel that lacks it, so that libraries take their older way.

Invariants:
    - No new namespaces, no keys, no tracing of others, no code for the kernel (bpf, modules, kexec), no userfaultfd,
      no io_uring, and no families of sockets but Unix, IPv4, IPv6 and two protocols of netlink.
    - What another machine word size or calling convention offers (32 bits, x32) does not exist.
"""

import ctypes
import errno
import functools
import os
from dataclasses import dataclass, field

from dart_gym.core.errors import MissingDependencyError

LIBRARY = "libseccomp.so.2"
SENDERS = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal")
"""Calls that send a signal: the listener of a filter is told of those that end or stop another program."""

_FILES = """
    access chdir chmod chown close close_range copy_file_range creat dup dup2 dup3 epoll_create epoll_create1 epoll_ctl
    epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 faccessat faccessat2 fadvise64 fallocate fchdir fchmod fchmodat
    fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fremovexattr fsetxattr fstat fstatfs fsync
    ftruncate futimesat getcwd getdents getdents64 getxattr inotify_add_watch inotify_init inotify_init1
    inotify_rm_watch ioctl ioprio_get ioprio_set
    lchown lgetxattr link linkat listxattr llistxattr lremovexattr lseek lsetxattr lstat mkdir mkdirat mknod mknodat
    name_to_handle_at newfstatat open openat openat2 pipe pipe2 poll ppoll pread64 preadv preadv2 pselect6 pwrite64
    pwritev pwritev2 read readahead readlink readlinkat readv removexattr rename renameat renameat2 rmdir select
    sendfile setxattr splice stat statfs statx symlink symlinkat sync sync_file_range syncfs tee truncate umask unlink
    unlinkat utime utimensat utimes vmsplice write writev cachestat
"""
_MEMORY = """
    brk madvise memfd_create mincore mlock mlock2 mlockall mmap mprotect mremap msync munlock munlockall munmap
    pkey_alloc pkey_free pkey_mprotect map_shadow_stack mseal membarrier remap_file_pages
"""
_PROCESSES = """
    arch_prctl capget capset execve execveat exit exit_group fork getegid geteuid getgid getgroups getpgid getpgrp
    getpid getppid getpriority getresgid getresuid getrlimit getrusage getsid gettid getuid kill landlock_add_rule
    landlock_create_ruleset landlock_restrict_self pause pidfd_open pidfd_send_signal prctl prlimit64
    process_mrelease rseq sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr
    sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam
    sched_setscheduler sched_yield seccomp set_robust_list get_robust_list set_tid_address setfsgid setfsuid setgid
    setgroups setpgid setpriority setregid setresgid setresuid setreuid setrlimit setsid setuid sigaltstack tgkill
    tkill vfork wait4 waitid rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend
    rt_sigtimedwait rt_tgsigqueueinfo restart_syscall signalfd signalfd4 getcpu sysinfo times uname getrandom
    set_thread_area get_thread_area
"""
_TALK = """
    accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmmsg recvmsg sendmmsg sendmsg
    sendto setsockopt shutdown socketpair futex futex_waitv futex_wake futex_wait futex_requeue mq_getsetattr mq_notify
    mq_open mq_timedreceive mq_timedsend mq_unlink msgctl msgget msgrcv msgsnd semctl semget semop semtimedop shmat
    shmctl shmdt shmget
"""
_TIME = """
    alarm clock_getres clock_gettime clock_nanosleep getitimer gettimeofday nanosleep setitimer time timer_create
    timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime
"""
ALLOWED = frozenset(f"{_FILES} {_MEMORY} {_PROCESSES} {_TALK} {_TIME}".split())

# Asked for by libraries as a matter of course, which go on without them: refused without a word in the log.
_ABSENT = frozenset("io_setup clone3 io_uring_setup io_uring_enter io_uring_register process_madvise kcmp".split())
_NOT_PERMITTED = frozenset("mbind get_mempolicy set_mempolicy set_mempolicy_home_node".split())

# Numbers by their low 32 bits, which are what the kernel takes: (value, bits that may be any), and none in two of them.
_LOW = 0xFFFFFFFF
_TOLD = (1, 2, 3, 9, 15, 19)  # SIGHUP, SIGINT, SIGQUIT, SIGKILL, SIGTERM, SIGSTOP
_UNTOLD = (*((0, 0), (4, 3), (8, 0), (10, 1), (12, 1), (14, 0), (16, 1), (18, 0), (20, 3), (24, 7), (32, 31), (64, 0)),)
_F_SETSIG, _F_SETPIPE_SZ = 10, 1031
_CONTROLS = (
    (0, 7),
    (8, 1),
    (11, 0),
    (12, 3),
    (16, 15),
    (32, 31),
    (1024, 3),
    (1028, 1),
    (1030, 0),
    (1032, 7),
    (1040, 15),
)
_IN_PART = frozenset({*SENDERS, "fcntl", "prlimit64"})

_NEW_NAMESPACES = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)  # CLONE_NEW*
_UNIX = 1
_INET = 2
_INET6 = 10
_NETLINK = 16
_INET_PROTOCOLS = (0, 1, 6, 17, 58)  # by the kind of socket, ICMP, TCP, UDP, ICMPv6
_NETLINK_PROTOCOLS = (0, 15)  # routes and interfaces (for getaddrinfo), devices (for libudev)
_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)  # "which have I got", and what `setarch` asks for

# libseccomp's ABI
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_NOTIFY = 0x7FC00000
_EQUAL = 4
_MASKED_EQUAL = 7
_GREATER = 6
_BAD_ARCHITECTURE = 2
_OPTIMIZE = 8
_BINARY_TREE = 2
_LAST_NUMBER = 1024


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter as the kernel takes it; number -> name of calls: `refused` with EPERM, and `senders` of signals."""

    program: bytes
    refused: dict[int, str]
    senders: dict[int, str] = field(default_factory=dict)


class _Comparison(ctypes.Structure):
    _fields_ = (("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


def _compare(argument: int, value: int, mask: int | None = None, op: int = _EQUAL) -> _Comparison:
    if mask is not None:
        return _Comparison(argument, _MASKED_EQUAL, mask, value)
    return _Comparison(argument, op, value, 0)


class _Rules:
    """libseccomp's rules in the making."""

    def __init__(self) -> None:
        try:
            self._lib = ctypes.CDLL(LIBRARY, use_errno=True)
        except OSError as error:
            raise MissingDependencyError(
                f"{LIBRARY} is missing, without which no filter of system calls can be made; next step: apt-get "
                "install libseccomp2 (or choose --isolation none)"
            ) from error
        self._lib.seccomp_init.restype = ctypes.c_void_p
        self._lib.seccomp_syscall_resolve_num_arch.restype = ctypes.c_void_p
        self._context = ctypes.c_void_p(self._lib.seccomp_init(ctypes.c_uint32(_ERRNO | errno.ENOSYS)))
        self._set(_BAD_ARCHITECTURE, _ERRNO | errno.ENOSYS)
        self._set(_OPTIMIZE, _BINARY_TREE)

    def _set(self, attribute: int, value: int) -> None:
        if self._lib.seccomp_attr_set(self._context, ctypes.c_int(attribute), ctypes.c_uint32(value)):
            raise MissingDependencyError(f"{LIBRARY} is older than 2.5; next step: install a newer libseccomp2")

    def add(self, action: int, name: str, *comparisons: _Comparison) -> None:
        """Add a rule; a name that this machine's kind of processor does not have is passed over."""
        number = self._lib.seccomp_syscall_resolve_name(name.encode())
        if number < 0:
            return
        array = (_Comparison * len(comparisons))(*comparisons)
        arguments = (self._context, ctypes.c_uint32(action), number, ctypes.c_uint(len(comparisons)), array)
        if error := self._lib.seccomp_rule_add_array(*arguments):
            raise OSError(-error, f"libseccomp refuses the rule for {name}: {os.strerror(-error)}")

    def name(self, number: int) -> str | None:
        """Return the name of a system call of this machine, or None."""
        pointer = self._lib.seccomp_syscall_resolve_num_arch(ctypes.c_uint32(0), number)
        if not pointer:
            return None
        text = ctypes.string_at(pointer).decode()
        ctypes.CDLL(None).free(ctypes.c_void_p(pointer))
        return text

    def program(self) -> bytes:
        """The kernel's program."""
        fd = os.memfd_create("filter", os.MFD_CLOEXEC)
        with open(fd, "rb") as file:
            if error := self._lib.seccomp_export_bpf(self._context, fd):
                raise OSError(-error, f"libseccomp cannot make the filter: {os.strerror(-error)}")
            file.seek(0)
            program = file.read()
        self._lib.seccomp_release(self._context)
        return program


@functools.cache
def system_call_filter(*, notify: bool) -> Filter:
    """Return the filter of system calls for this machine.

    With `notify` refused calls go to the filter's listener, which answers EPERM and keeps a record; else to the
    kernel.

    Raises:
        MissingDependencyError: if libseccomp is missing or older than 2020.
    """
    rules = _Rules()
    refuse = _NOTIFY if notify else _ERRNO | errno.EPERM
    for name in sorted(ALLOWED - _IN_PART):
        rules.add(_ALLOW, name)
    for name in sorted(_NOT_PERMITTED):
        rules.add(_ERRNO | errno.EPERM, name)
    _add_conditional(rules, refuse)
    _add_signals(rules, notify=notify)
    conditional = {"clone", "socket", "personality"}
    refused = {}
    for number in range(_LAST_NUMBER):
        known = rules.name(number)
        if known is None or known in ALLOWED | _ABSENT | _NOT_PERMITTED:
            continue
        refused[number] = known
        if known not in conditional:
            rules.add(refuse, known)
    names = ((number, rules.name(number)) for number in range(_LAST_NUMBER))
    senders = {number: name for number, name in names if name is not None and name in SENDERS}
    return Filter(rules.program(), refused, senders)


def _add_signals(rules: _Rules, *, notify: bool) -> None:
    """Rules for calls that send a signal: of those that end or stop a program the listener is told, where there is one.

    The kernel takes the low 32 bits of a number; no library sends one with other bits, and it does not exist.
    """
    for name in SENDERS:
        number = 2 if name in ("tgkill", "rt_tgsigqueueinfo") else 1
        if not notify:
            rules.add(_ALLOW, name)
            continue
        for value in _TOLD:
            rules.add(_NOTIFY, name, _compare(number, value, mask=_LOW))
        for value, free in _UNTOLD:
            rules.add(_ALLOW, name, _compare(number, value, mask=_LOW - free))


def _add_controls(rules: _Rules) -> None:
    """Rules for ways around the record of signals, and to what all desktops of one user share.

    `F_SETSIG` and a limit of processor time have the kernel send another process any signal, and other limits break
    it: a program sets its own alone. The memory of pipes is counted for the user as a whole. Kernels refuse these,
    too, where they have their reasons, so programs go on.
    """
    for value, free in _CONTROLS:
        rules.add(_ALLOW, "fcntl", _compare(1, value, mask=_LOW - free))
    for value in (_F_SETSIG, _F_SETPIPE_SZ):
        rules.add(_ERRNO | errno.EPERM, "fcntl", _compare(1, value, mask=_LOW))
    rules.add(_ALLOW, "prlimit64", _compare(0, 0, mask=_LOW))
    rules.add(_ALLOW, "prlimit64", _compare(2, 0))
    rules.add(_ERRNO | errno.EPERM, "prlimit64", _compare(0, 0, op=_GREATER), _compare(2, 0, op=_GREATER))


def _add_conditional(rules: _Rules, refuse: int) -> None:
    """Rules for the calls of which only some uses are allowed."""
    for flag in _NEW_NAMESPACES:
        rules.add(refuse, "clone", _compare(0, flag, mask=flag))
    rules.add(_ALLOW, "clone", _compare(0, 0, mask=sum(_NEW_NAMESPACES)))
    for value in _PERSONALITIES:
        rules.add(_ALLOW, "personality", _compare(0, value, mask=0xFFFFFFFF))
    rules.add(_ALLOW, "socket", _compare(0, _UNIX))
    for family in (_INET, _INET6):
        for protocol in _INET_PROTOCOLS:
            rules.add(_ALLOW, "socket", _compare(0, family), _compare(2, protocol))
    for protocol in _NETLINK_PROTOCOLS:
        rules.add(_ALLOW, "socket", _compare(0, _NETLINK), _compare(2, protocol))
    _add_controls(rules)
    unknown = _ERRNO | errno.EAFNOSUPPORT
    for family in set(range(_NETLINK + 1)) - {_UNIX, _INET, _INET6, _NETLINK}:
        rules.add(unknown, "socket", _compare(0, family))
    rules.add(unknown, "socket", _compare(0, _NETLINK, op=_GREATER))
