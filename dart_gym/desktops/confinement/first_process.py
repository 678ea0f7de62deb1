"""Process 1 of a sandbox: gives up rights, starts the program next to it, reaps orphans, records refused system calls.

It also says who ended the desktop, by its exit status (`ENDED_OUTSIDE`): the kernel tells it before a program inside
sends a signal that ends or stops another, so that it knows all of those. What such a signal ended without a sender
inside was ended by the machine.

    /usr/bin/python3 -I -S first_process.py

It is run by the system's Python, so it uses the standard library only and imports nothing of this package. Its settings
are in `settings.json` beside it, a file since `ps` inside shows command lines, and `grep` would find in them the names
of programs that do not run. The program is `guest.py` beside it.

Invariants:
    - No program of the sandbox starts before the limits, the filter of system calls and an own session keyring are in
      place; all of them inherit these, and so does this process itself.
    - No program inside can end, stop or read this process: the kernel spares process 1 signals from inside, and it
      cannot be traced. When the program next to it ends, it ends too, and with it everything inside.
    - A program that makes a refused call gets an error at once; each pair of program and call is recorded once.
"""

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import threading

PR_SET_DUMPABLE, PR_SET_NAME = 4, 15
KEYCTL, JOIN_SESSION_KEYRING = {"x86_64": 250, "aarch64": 219}, 1
SECCOMP = {"x86_64": 317, "aarch64": 277}
SET_MODE_FILTER = 1
NEW_LISTENER = 8
RECEIVE, SEND = 0xC0502100, 0xC0182101  # SECCOMP_IOCTL_NOTIF_RECV and _SEND
NOTICE, ANSWER = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
LONGEST_RECORD = 200
LOOK_MS = 500
ENDED_INSIDE, ENDED_OUTSIDE = 70, 75
CONTINUE = 1  # SECCOMP_USER_NOTIF_FLAG_CONTINUE
# Of a system call that sends a signal: which argument names the target, and which the signal.
SENDERS = {
    "kill": (0, 1), "tkill": (0, 1), "tgkill": (0, 2), "rt_sigqueueinfo": (0, 1), "rt_tgsigqueueinfo": (0, 2),
    "pidfd_send_signal": (0, 1),
}  # fmt: skip
# What another process sends to end a program; all others that end one are its own doing, such as a crash.
ENDING = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
ENDS_WELL_BY_SIGNAL = frozenset({"xvfb", "dbus"})  # programs that end with status 0 only when they are told to by one
MOST_TARGETS = 4096
REPORT_BYTES = 4096


class Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def confine(settings):
    """Give up what no program inside shall have; return the descriptor on which refused calls are heard of."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_DUMPABLE, 0)
    libc.prctl(PR_SET_NAME, b"desktop-init")
    machine = os.uname().machine
    if libc.syscall(KEYCTL[machine], JOIN_SESSION_KEYRING, None) < 0 and ctypes.get_errno() != errno.ENOSYS:
        sys.exit(f"no session keyring of its own: {os.strerror(ctypes.get_errno())}")
    for name, value in settings["rlimits"].items():
        number = getattr(resource, "RLIMIT_" + name)
        hard = resource.getrlimit(number)[1]
        least = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (least, least))
    with open(settings["filter"], "rb") as file:
        instructions = file.read()
    program = Program(len(instructions) // 8, instructions)
    listener = libc.syscall(SECCOMP[machine], SET_MODE_FILTER, NEW_LISTENER, ctypes.byref(program))
    if listener < 0:
        sys.exit(f"the kernel refuses the filter of system calls: {os.strerror(ctypes.get_errno())}")
    os.set_inheritable(listener, False)
    return listener


class Recorder:
    """Answers the calls that the filter asks about, in a thread of its own, since this process may make some, too.

    Refused ones are written once for each pair of program and call, as a line of JSON. Signals are remembered and let
    through.
    """

    def __init__(self, listener, refused, senders, record, signals):
        self.listener = listener
        self.refused = refused
        self.senders = senders
        self.record = record
        self.signals = signals
        self.seen = set()

    def serve(self):
        """Answer until this process ends."""
        while True:
            self.answer()

    def answer(self):
        """Answer the call that waits, or the next."""
        notice = bytearray(NOTICE.size)
        try:
            fcntl.ioctl(self.listener, RECEIVE, notice)
            number, pid, _, call, _, _, *arguments = NOTICE.unpack(notice)
            if (sender := self.senders.get(str(call))) is not None:
                target, sent = (arguments[index] & 0xFFFFFFFF for index in SENDERS[sender])
                self.signals.note(pid, sender, target - (1 << 32) if target >> 31 else target, sent)
                answer = ANSWER.pack(number, 0, 0, CONTINUE)
            else:
                self.note(pid, call)
                answer = ANSWER.pack(number, 0, -errno.EPERM, 0)
            fcntl.ioctl(self.listener, SEND, bytearray(answer))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EINTR):  # the program was killed meanwhile
                raise

    def note(self, pid, call):
        """Write who asked for what."""
        try:
            with open(f"/proc/{pid}/comm", "rb") as file:
                program = file.read(32).decode(errors="replace").strip()
        except OSError:
            program = "?"
        entry = (program, self.refused.get(str(call), str(call)))
        if entry in self.seen or len(self.seen) >= LONGEST_RECORD:
            return
        self.seen.add(entry)
        line = json.dumps({"program": entry[0], "call": entry[1]}) + "\n"
        with contextlib.suppress(OSError):  # the host's disk is full: no reason to end a desktop
            os.write(self.record, line.encode())
        say(f"refused system call {entry[1]} of the program {entry[0]!r}")


def say(text):
    """Write a line into this desktop's log, whose disk may be full."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode(errors="replace") + b"\n")


class Signals:
    """Which processes got which ending or stopping signal from a program inside, the first process included."""

    def __init__(self):
        self.sent = set()  # (pid or None for "may be any", number)

    def note(self, sender, call, target, number):
        """Remember a signal that is about to be sent."""
        found = {"pidfd_send_signal": self.pid_of_descriptor}.get(call, self.pid_of)(sender, target)
        if len(self.sent) >= MOST_TARGETS:
            found = None
        self.sent.add((found, number))

    @staticmethod
    def pid_of(sender, target):
        """Process of a target, which may be a thread or a group of processes; None: it may be any."""
        if target == -1:
            return None
        if target <= 0:  # a group has the number of its first process
            return -target or os.getpgid(sender)
        return field_of(f"/proc/{target}/status", "Tgid:") or target

    @staticmethod
    def pid_of_descriptor(sender, target):
        """Process that a descriptor of the sender stands for; None where that cannot be seen."""
        return field_of(f"/proc/{sender}/fdinfo/{target}", "Pid:")

    def reached(self, pid, number):
        """Return whether a process was sent this signal from inside."""
        return (pid, number) in self.sent or (None, number) in self.sent


def field_of(path, name):
    """Return the number behind a name in one of the kernel's files, or None."""
    try:
        with open(path, errors="replace") as file:
            return next((int(line.split()[1]) for line in file if line.startswith(name)), None)
    except (OSError, ValueError):
        return None


def ended_by(pid, name, code, signals):
    """Return who ended a program: `ENDED_OUTSIDE` if no process inside sent the signal. Pure.

    `code` is an exit status, or below 0 the number of the signal that ended it.
    """
    if code < 0 and -code in ENDING and not signals.reached(pid, -code):
        return ENDED_OUTSIDE
    if code == 0 and name in ENDS_WELL_BY_SIGNAL and not any(signals.reached(pid, number) for number in ENDING):
        return ENDED_OUTSIDE
    return ENDED_INSIDE


class Purse:
    """Counts memory where no control group does, and ends the largest programs when it is too much."""

    def __init__(self, most, storage):
        self.most, self.storage = most, storage
        self.page = os.sysconf("SC_PAGE_SIZE")
        self.libc = ctypes.CDLL(None)

    def look(self, spared):
        """Compare what is used with what may be."""
        used = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/statm") as file:
                    _, resident, shared, *_ = map(int, file.read().split())
            except OSError:
                continue  # it has ended
            used[int(pid)] = (resident - shared) * self.page
        files = 0
        for directory in self.storage:
            found = os.statvfs(directory)
            files += (found.f_blocks - found.f_bfree) * found.f_frsize
        total = sum(used.values()) + files
        for victim in sorted(used, key=lambda number: used[number], reverse=True):
            if total <= self.most:
                return
            if victim not in spared:
                words = (
                    f"the desktop used more than {self.most} bytes of memory: a program with {used[victim]} was ended"
                )
                say(words)
                # Not `os.kill`, which keeps Python's lock: the kernel waits for the thread that is told of signals.
                self.libc.kill(victim, signal.SIGKILL)
                total -= used[victim]


def watch(child, report, signals, purse):
    """Reap what ends, and count, until the program ends; return who ended it.

    The program reports on `report` which of those that the desktop cannot do without has ended. It ends, too, when it
    is stopped: nobody would be answered.
    """
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own handler would let it through
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    while True:
        code = reap(child)
        if code is not None:
            return verdict(child, code, report, signals)
        for _ in poll.poll(LOOK_MS if purse else None):
            os.read(reader, 4096)
        if purse:
            purse.look({1, child})


def reap(child):
    """Reap all that has ended; of the program its exit status, or below 0 the signal that has ended or stopped it."""
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                return None
            if pid == child:
                return -os.WSTOPSIG(status) if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)
    except ChildProcessError:
        return 71


def verdict(child, code, report, signals):
    """Return who ended the program, or what it needs and lacks; see `ended_by`."""
    if code == -signal.SIGSTOP:
        say("the program that serves this desktop was stopped, which ends the desktop")
        return ENDED_INSIDE if signals.reached(child, signal.SIGSTOP) else ENDED_OUTSIDE
    with contextlib.suppress(OSError, ValueError):
        os.set_blocking(report, False)
        said = json.loads(os.read(report, REPORT_BYTES))
        return ended_by(said["pid"], said["name"], said["code"], signals)
    return ended_by(child, "guest", code, signals)


def main():
    """Confine all that follows, start the program, and see to it until it ends."""
    room = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(room, "settings.json")) as file:
        settings = json.load(file)
    record = settings["record"]
    os.set_inheritable(record, False)
    hand_over(settings["handover"], settings["directories"])
    copy_skeleton(settings["skeleton"], os.environ["HOME"])
    report, told = os.pipe()
    listener = confine(settings)
    child = os.fork()
    if child:
        os.close(told)
        signals = Signals()
        recorder = Recorder(listener, settings["refused"], settings["senders"], record, signals)
        threading.Thread(target=recorder.serve, daemon=True).start()  # before any program can use up the threads
        purse = Purse(settings["memory"], settings["storage"]) if settings["memory"] else None
        os._exit(watch(child, report, signals, purse))
    os.close(listener)
    os.close(record)
    os.close(report)
    sys.argv[1:] = [json.dumps({**json.loads(settings["plan"]), "report_fd": told})]
    sys.path.insert(0, room)
    sys.dont_write_bytecode = True
    import guest  # type: ignore[import-not-found]  # next to this file when it runs

    guest.main()


def hand_over(descriptor, directories):
    """Send descriptors of directories to the host, which reads what will be in them; missing ones are made."""
    descriptors = []
    for directory in directories:
        os.makedirs(directory, exist_ok=True)
        descriptors.append(os.open(directory, os.O_PATH | os.O_DIRECTORY))
    with socket.socket(fileno=descriptor) as connection:
        socket.send_fds(connection, [b"."], descriptors)
    for opened in descriptors:
        os.close(opened)


def copy_skeleton(source, home):
    """Fill the home directory, which is empty and belongs to the sandbox, with what the machine gives its user."""
    for directory, folders, files in os.walk(source):
        target = os.path.join(home, os.path.relpath(directory, source))
        for name in folders:
            os.mkdir(os.path.join(target, name))
        for name in files:
            with open(os.path.join(directory, name), "rb") as old, open(os.path.join(target, name), "wb") as new:
                new.write(old.read())


if __name__ == "__main__":
    main()
