"""The first program inside a sandbox: starts the display, runs commands, reads and writes files, relays ports.

It is run by the system's Python (`/usr/bin/python3 -I -S guest.py PLAN`), so it uses the standard library only and
imports nothing of this package. The other side is `dart_gym.desktops.sandbox.guest_client`.

Invariants:
    - It lives exactly as long as the desktop: when it ends, everything that it started ends too (the sandbox's pid
      namespace does that; without a sandbox, it kills its descendants itself).
    - The sockets that it listens on were bound by the host and came as file descriptors, so that no program inside
      can make the host open another path.
    - No program inside can use its sockets or its memory (`protect`).
    - Whatever programs inside use up, requests are answered: where no thread can be had, one of a reserve answers.
    - What fails since a program inside has used something up is told apart from what fails for another reason.
    - One connection is one request: a line of JSON and `body` bytes each way. A command whose connection closes is
      killed, so that deadlines and cancellation need no messages.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import queue
import select
import selectors
import signal
import socket
import stat
import subprocess
import sys
import threading
import time

MAX_HEADER = 1 << 20
CHUNK = 1 << 16
DISPLAY_END_S = 1.0
RESERVE = 4  # threads that answer when no other can be started
EXHAUSTED = (errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT)
OF_THE_MACHINE = (errno.EIO, errno.ENFILE, errno.EMFILE)
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36


class Exhausted(Exception):
    """Programs inside have used up what this needs, or send more than can be taken."""


class Guest:
    """The programs of one desktop, and the requests about them."""

    def __init__(self, plan):
        self.plan = plan
        self.env = dict(os.environ)
        self.home = self.env["HOME"]
        self.display = None
        self.ending = threading.Lock()
        self.waiting: queue.SimpleQueue = queue.SimpleQueue()

    def boot(self):
        """Start display and message bus, at once where the number is given, then the window manager; the number."""
        display_fd, self.display = self._start_announcing("xvfb", self.plan["display_server"])
        if "DISPLAY" in self.env:
            bus_fd, _ = self._start_announcing("dbus", self.plan["message_bus"])
        number = _read_line(display_fd)
        if not number:
            raise RuntimeError("Xvfb ended before it was ready")
        if not self.plan["isolated"]:  # a later clean-up tells our display from others' by it
            with open(os.path.join(self.plan["log_dir"], "display"), "w") as file:
                file.write(number)
        if "DISPLAY" not in self.env:
            self.env["DISPLAY"] = ":" + number
            bus_fd, _ = self._start_announcing("dbus", self.plan["message_bus"])
        address = _read_line(bus_fd)
        if not address:
            raise RuntimeError("dbus-daemon ended before it was ready")
        self.env["DBUS_SESSION_BUS_ADDRESS"] = address
        self.spawn("openbox", self.plan["window_manager"], essential=True)
        return int(number)

    def _start_announcing(self, name, command):
        """Start a program that writes one line to the descriptor in its last argument as soon as it is ready."""
        read_end, write_end = os.pipe()
        process = self.spawn(name, [*command, str(write_end)], essential=True, pass_fds=[write_end])
        os.close(write_end)
        return read_end, process

    def spawn(self, name, command, essential=False, env=None, pass_fds=()):
        """Start a program in the background with its output in a log; the desktop ends when an essential one does."""
        with open(os.path.join(self.plan["log_dir"], name + ".log"), "ab") as log:
            process = self._popen(command, env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=pass_fds)
        try:
            start_thread(self._watch, name, process, essential)
        except Exhausted:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        return process

    def _popen(self, command, env, **options):
        with self.ending:  # nothing starts any more once the end has begun
            env = {**self.env, **(env or {})}
            try:
                return subprocess.Popen(command, cwd=self.home, env=env, start_new_session=True, **options)
            except OSError as error:
                if error.filename == self.home != command[0]:
                    raise Exhausted(f"no program can start in the home directory: {error}") from None
                raise

    def _watch(self, name, process, essential):
        code = process.wait()
        if essential:
            name, process, code = self._first_ended(name, process, code)
            print(f"{name} ended with status {code}, which ends the desktop", file=sys.stderr, flush=True)
            if "report_fd" in self.plan:  # for the first process, which knows who has sent signals
                os.write(self.plan["report_fd"], json.dumps({"name": name, "pid": process.pid, "code": code}).encode())
            self.end(70)

    def _first_ended(self, name, process, code):
        """The display, where a program has given up because that is ending, which may be seen a moment later."""
        display = self.display
        if code > 0 and display is not None and process is not display:
            try:
                return "xvfb", display, display.wait(DISPLAY_END_S)
            except subprocess.TimeoutExpired:
                pass  # the guest continues: the program ended for a reason of its own
        return name, process, code

    def end(self, code):
        """End this program and with it the desktop."""
        with self.ending:  # the second thread finds the program gone
            if not self.plan["isolated"]:
                self._end_display()
                kill_descendants(os.getpid())
            os._exit(code)

    def _end_display(self):
        """Let Xvfb remove its socket and lock, which are in the `/tmp` of the host."""
        if self.display is not None and self.display.poll() is None:
            self.display.terminate()
            deadline = time.monotonic() + 2
            while self.display.poll() is None and time.monotonic() < deadline:
                time.sleep(0.005)

    def serve(self, listener):
        """Answer requests, one thread each, until killed."""
        for _ in range(RESERVE):
            threading.Thread(target=self._stand_by, daemon=True).start()
        while True:
            connection, _ = listener.accept()
            try:
                start_thread(self._answer, connection)
            except Exhausted:
                self.waiting.put(connection)

    def _stand_by(self):
        while True:
            self._answer(self.waiting.get())

    def _answer(self, connection):
        with connection:
            try:
                request, body, fds = receive(connection)
                reply, content = getattr(self, "do_" + request["op"])(connection, request, body, fds)
            except Exception as error:
                reply, content = self._failure(error), b""
            try:
                connection.sendall(json.dumps({**reply, "body": len(content)}).encode() + b"\n" + content)
            except OSError:
                pass  # the host no longer wants the answer

    def _failure(self, error):
        """Return what a request failed with, and whether programs inside are to blame for that."""
        words = {"message": str(error) or type(error).__name__}
        if isinstance(error, (Exhausted, MemoryError)):
            return {**words, "error": "Exhausted"}
        if not isinstance(error, OSError) or error.errno in OF_THE_MACHINE:
            return {"error": "Failure", "message": f"{type(error).__name__}: {error}"}
        if self.plan["isolated"] and error.errno in EXHAUSTED:  # its places for files are its own, too
            return {**words, "error": "Exhausted"}
        return {**words, "error": type(error).__name__, "errno": error.errno}

    def do_boot(self, connection, request, body, fds):
        """Start the display; the answer comes when it is ready."""
        return {"display": self.boot()}, b""

    def do_launch(self, connection, request, body, fds):
        """Start a program in the background."""
        self.spawn(request["name"], request["command"], request["essential"], request["env"])
        return {}, b""

    def do_run(self, connection, request, body, fds):
        """Run a program to its end; the answer is its output."""
        try:
            pipe = subprocess.PIPE
            process = self._popen(request["command"], request["env"], stdin=pipe, stdout=pipe, stderr=pipe)
        except OSError as error:
            if error.errno in EXHAUSTED:
                raise Exhausted(f"no process can be started: {error}") from None
            return {"returncode": 127, "stdout": 0, "missing": True}, str(error).encode()  # as a shell reports it
        outputs = Outputs(process, request["limit"])
        try:
            start_thread(_kill_when_closed, connection, process)
            outputs.take(body)
            if outputs.left < 0:
                raise Exhausted(f"the program wrote more than {request['limit']} bytes")
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        stdout, stderr = outputs.taken
        return {"returncode": process.wait(), "stdout": len(stdout)}, bytes(stdout + stderr)

    def do_read(self, connection, request, body, fds):
        """Send a regular file, unless it is too large or nobody waits for it any more."""
        path, limit = self._path(request["path"]), request["limit"]
        with open(path, "rb", opener=_open_regular) as file, _blamed_on_the_desktop(file.fileno(), path):
            too_large = os.fstat(file.fileno()).st_size > limit
            content = bytearray()
            while not too_large and (chunk := file.read(CHUNK)):  # in /proc and where it grows, its size says nothing
                content += chunk
                too_large = len(content) > limit
                if select.select([connection], [], [], 0)[0]:  # the host waits for no answer any more
                    return {}, b""
        if too_large:
            raise OSError(errno.EFBIG, f"the file is larger than {limit} bytes, and is not read", path)
        return {}, bytes(content)

    def do_write(self, connection, request, body, fds):
        """Create, replace or append to a file."""
        path = self._path(request["path"])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "ab" if request["append"] else "wb", opener=_open_regular) as file:
            file.write(body)
        return {}, b""

    def _path(self, path):
        """The path as programs here see it; `/home/user` stands for the home directory also without a sandbox."""
        if path == "/home/user" or path.startswith("/home/user/"):
            path = self.home + path[len("/home/user") :]
        return os.path.join(self.home, os.path.expanduser(path))

    def do_listen(self, connection, request, body, fds):
        """Lead the clients of the socket that came along to a port."""
        listener = socket.socket(fileno=fds[0])
        start_thread(_relay, listener, request["port"])
        return {}, b""


class Outputs:
    """What a command writes, up to `limit` bytes in all; its standard streams are pipes."""

    def __init__(self, process, limit):
        self.process, self.left = process, limit
        self.taken = bytearray(), bytearray()

    def take(self, body):
        """Give the command its input and take what it writes, until it has ended or written too much."""
        pipes = {self.process.stdout: self.taken[0], self.process.stderr: self.taken[1]}
        if body:
            start_thread(_feed, self.process.stdin, body)
        else:
            self.process.stdin.close()
        with selectors.DefaultSelector() as selector:
            for pipe in pipes:
                selector.register(pipe, selectors.EVENT_READ)
            while pipes and self.left >= 0:
                for key, _ in selector.select():
                    chunk = os.read(key.fd, CHUNK)
                    pipes[key.fileobj].extend(chunk)
                    self.left -= len(chunk)
                    if not chunk:
                        selector.unregister(key.fileobj)
                        del pipes[key.fileobj]
        self.process.stdout.close()
        self.process.stderr.close()


def _feed(pipe, body):
    try:
        with pipe:
            pipe.write(body)
    except OSError:
        pass  # it does not read its input


@contextlib.contextmanager
def _blamed_on_the_desktop(fd, path):
    """Tell a failure of the machine's disks apart from one that a program inside has linked a path to.

    The memory of a process (`/proc/<pid>/mem`), for one, is a regular file that is read like one of a broken disk.
    """
    try:
        yield
    except OSError as error:
        if error.errno in OF_THE_MACHINE and os.readlink(f"/proc/self/fd/{fd}").startswith(("/proc/", "/sys/")):
            raise OSError(errno.EINVAL, "it is no file of a disk, and cannot be read", path) from None
        raise


def _open_regular(path, flags):
    """Open a file, but not one that can be read for ever or blocks: `opener` of `open`."""
    fd = os.open(path, flags | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        kind = IsADirectoryError if os.path.isdir(path) else OSError
        raise kind(errno.EISDIR if kind is IsADirectoryError else errno.EINVAL, "it is no regular file", path)
    return fd


def _read_line(fd):
    with os.fdopen(fd, "r") as file:
        return file.readline().strip()


def receive(connection):
    """Read a request: its header, its body, and the file descriptors that came with it."""
    data, fds, _, _ = socket.recv_fds(connection, CHUNK, 1)
    while b"\n" not in data:
        chunk = connection.recv(CHUNK)
        if not chunk or len(data) > MAX_HEADER:
            raise ConnectionError("incomplete request")
        data += chunk
    head, _, rest = data.partition(b"\n")
    header = json.loads(head)
    body = bytearray(rest)
    while len(body) < header["body"]:
        chunk = connection.recv(CHUNK)
        if not chunk:
            raise ConnectionError("incomplete request")
        body += chunk
    return header, bytes(body), fds


def _kill_when_closed(connection, process):
    """Kill a command and its process group when the host closes its connection before the end."""
    try:
        gone = connection.recv(1) == b""
    except OSError:
        return  # closed on this side: the command has ended and was answered
    if gone and process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def _relay(listener, port):
    """Connect each client of a Unix socket to a TCP port of this loopback."""
    while True:
        client, _ = listener.accept()
        try:
            server = socket.create_connection(("127.0.0.1", port))
        except OSError:
            client.close()  # the host sees a closed connection: nothing listens on that port
            continue
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            start_thread(_pump, client, server)
            start_thread(_pump, server, client)
        except Exhausted:
            for end in (client, server):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # it is closed already


def start_thread(target, *args):
    """Start a thread that is never joined.

    Raises:
        Exhausted: if there are too many processes and threads.
    """
    try:
        threading.Thread(target=target, args=args, daemon=True).start()
    except RuntimeError as error:
        raise Exhausted(str(error)) from None


def _pump(source, sink):
    try:
        while data := source.recv(CHUNK):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)  # closing would not wake the thread that reads from it
            except OSError:
                pass  # it is closed already


def protect():
    """Keep this user's programs from this one's memory and descriptors, to answer in its place, and from ending it."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_DUMPABLE, 0)
    libc.prctl(PR_SET_NAME, b"desktop-guest")


def die_with_parent():
    """Have the kernel end this program when the host process dies, and adopt what its children leave behind."""
    libc = ctypes.CDLL(None)
    parent = os.getppid()
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != parent:
        sys.exit(71)


def kill_descendants(pid):
    """Kill all processes below one, also those that detached themselves but were adopted by it."""
    while found := descendants(pid):
        for child in found:
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.002)  # until the kernel has ended them, and those that they leave behind have a new parent


def descendants(pid):
    """Living processes below one."""
    found = set()
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                for child in map(int, file.read().split()):
                    found |= {child} | descendants(child)
    except (FileNotFoundError, ProcessLookupError):
        pass  # it has ended in between
    return {child for child in found if not _is_zombie(child)}


def _is_zombie(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def main():
    """Serve until killed."""
    plan = json.loads(sys.argv[1])
    guest = Guest(plan)
    protect()
    if plan["isolated"]:
        for number in ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "ALRM", "TSTP", "TTIN", "TTOU", "IO", "PIPE"):
            signal.signal(getattr(signal, f"SIG{number}"), lambda *_: None)  # of a program inside
    else:
        die_with_parent()
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=guest.end, args=(0,)).start())
    guest.serve(socket.socket(fileno=plan["listen_fd"]))


if __name__ == "__main__":
    main()
