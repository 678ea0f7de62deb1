"""What an agent may do with a terminal, at random: forks, fills, kills, stops, links and writes. Runs on a desktop.

`python3 random_program.py SEED`: with a given seed always the same.
"""

import os
import random
import signal
import subprocess
import sys
import time

PLACES = (
    *("/home/user", "/tmp", "/dev/shm", "/var/tmp", "/run/desktop", "/run/desktop/log", "/run/user/1000"),
    *("/etc", "/"),
)
SIGNALS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGCONT, signal.SIGHUP)
LONGEST_REST_S = 0.2


def fork():
    """Leave children behind, of their own session at times."""
    for _ in range(random.randrange(1, 200)):
        if os.fork() == 0:
            if random.random() < 0.5:
                os.setsid()
            time.sleep(random.random() * 30)
            os._exit(0)


def fill():
    """Write as much as there is room for, or as much memory as there is."""
    if random.random() < 0.3:
        subprocess.run([sys.executable, "-c", "x = []\nwhile 1: x.append(bytearray(b'x') * (64 << 20))"], check=False)
        return
    with open(os.path.join(random.choice(PLACES), f"fill-{random.random()}"), "wb") as file:
        for _ in range(random.randrange(1, 200)):
            file.write(bytes(1 << 20))


def kill():
    """Send a signal to any process."""
    pids = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != os.getpid()]
    os.kill(random.choice(pids), random.choice(SIGNALS))


def link():
    """Put a link, a pipe or a deep tree in the place of what the server may look at."""
    top = random.choice(PLACES)
    path = os.path.join(top, random.choice([*os.listdir(top), "new"]))
    match random.randrange(4):
        case 0:
            os.rename(path, path + ".away")
            os.symlink(random.choice(("/etc/passwd", "/dev/zero", "/proc/self/mem", path)), path)
        case 1:
            os.rename(path, path + ".away")
            os.mkfifo(path)
        case 2:
            os.chdir(top)
            for _ in range(3000):
                os.mkdir("d")
                os.chdir("d")
            os.chmod(".", 0)
        case 3:
            os.truncate(path, random.choice((0, 1, 1 << 40)))


def write():
    """Write bytes at random into any file or socket that takes them."""
    top = random.choice((*PLACES, "/proc/1", "/proc/sys/kernel", "/tmp/.X11-unix", "/proc/self"))
    path = os.path.join(top, random.choice(os.listdir(top)))
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    os.write(fd, random.randbytes(random.randrange(1, 65536)))
    os.close(fd)


def call():
    """Make a system call that may not exist."""
    import ctypes

    arguments = [random.choice((0, 1, -1, random.getrandbits(32))) for _ in range(5)]
    if os.fork() == 0:
        ctypes.CDLL(None).syscall(random.randrange(0, 470), *arguments)
        os._exit(0)


def main():
    """Go on until ended."""
    random.seed(int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        try:
            random.choice((fork, fill, kill, kill, link, write, write, call))()
        except (OSError, IndexError):
            pass  # refused
        time.sleep(random.random() * LONGEST_REST_S)


if __name__ == "__main__":
    main()
