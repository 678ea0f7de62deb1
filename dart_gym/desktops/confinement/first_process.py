"""Process 1 of a sandbox: gives up rights, starts the program beside it, reaps orphans, records refused system calls.

    /usr/bin/python3 -I -S first_process.py

It is run by the system's Python, so it uses the standard library only and imports nothing of this package. Its settings
are in `settings.json` beside it, a file since `ps` inside shows command lines, and `grep` would find in them the names
of programs that do not run. The program is `guest.py` beside it.

Invariants:
    - No program of the sandbox starts before the limits, the filter of system calls and an own session keyring are in
      place; all of them inherit these, and so does this process itself.
    - No program inside can end, stop or read this process: the kernel spares process 1 signals from inside, and it
      cannot be traced. When the program beside it ends, it ends too, and with it everything inside.
    - Who asks for a refused call gets an error at once; each pair of program and call is recorded once.
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

PR_SET_DUMPABLE, PR_SET_NAME = 4, 15
KEYCTL, JOIN_SESSION_KEYRING = {"x86_64": 250, "aarch64": 219}, 1
SECCOMP, SET_MODE_FILTER, NEW_LISTENER = {"x86_64": 317, "aarch64": 277}, 1, 8
RECEIVE, SEND = 0xC0502100, 0xC0182101  # SECCOMP_IOCTL_NOTIF_RECV and _SEND
NOTICE, ANSWER = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
LONGEST_RECORD = 200
LOOK_MS = 500


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
    """Answers refused calls, and writes each pair of program and call once, as a line of JSON."""

    def __init__(self, listener, refused, record):
        self.listener, self.refused, self.record = listener, refused, record
        self.seen = set()

    def answer(self):
        """Refuse the call that waits."""
        notice = bytearray(NOTICE.size)
        try:
            fcntl.ioctl(self.listener, RECEIVE, notice)
            number, pid, _, call, *_ = NOTICE.unpack(notice)
            self.note(pid, call)
            fcntl.ioctl(self.listener, SEND, bytearray(ANSWER.pack(number, 0, -errno.EPERM, 0)))
        except OSError as error:
            if error.errno != errno.ENOENT:  # the program was killed meanwhile
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
        os.write(self.record, line.encode())
        print(f"refused system call {entry[1]} of the program {entry[0]!r}", file=sys.stderr, flush=True)


class Purse:
    """Counts memory where no control group does, and ends the largest programs when it is too much."""

    def __init__(self, most, storage):
        self.most, self.storage = most, storage
        self.page = os.sysconf("SC_PAGE_SIZE")

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
                print(words, file=sys.stderr, flush=True)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                total -= used[victim]


def watch(child, recorder, purse):
    """Reap what ends, answer refused calls, and count, until the program ends; return its exit status."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own handler would let it through
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    poll.register(recorder.listener, select.POLLIN)
    while True:
        status = reap(child)
        if status is not None:
            return status
        for descriptor, _ in poll.poll(LOOK_MS if purse else None):
            if descriptor == reader:
                os.read(reader, 4096)
            else:
                recorder.answer()
        if purse:
            purse.look({1, child})


def reap(child):
    """Reap all that has ended; the exit status of the program if that has."""
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == child:
                return os.waitstatus_to_exitcode(status) & 0xFF
            if pid == 0:
                return None
    except ChildProcessError:
        return 71


def main():
    """Confine all that follows, start the program, and see to it until it ends."""
    room = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(room, "settings.json")) as file:
        settings = json.load(file)
    record = settings["record"]
    os.set_inheritable(record, False)
    hand_over(settings["handover"], settings["directories"])
    copy_skeleton(settings["skeleton"], os.environ["HOME"])
    listener = confine(settings)
    child = os.fork()
    if child:
        purse = Purse(settings["memory"], settings["storage"]) if settings["memory"] else None
        os._exit(watch(child, Recorder(listener, settings["refused"], record), purse))
    os.close(listener)
    os.close(record)
    sys.argv[1:] = [settings["plan"]]
    sys.path.insert(0, room)
    sys.dont_write_bytecode = True
    import guest  # type: ignore[import-not-found]  # beside this file when it runs

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
