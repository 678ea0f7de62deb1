"""Write docs/failures.md: how the commands of the three programs end when something is wrong, by running them.

    python scripts/failure_table.py [OUT]

Each cell is the exit status and the last line that the command printed. `tests/test_failures.py` runs a part
of it. Numbers, paths and times are replaced, so that a page that is written again only changes with the code.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MODULES = {
    "dart-gym": "dart_gym.commands.gym_cli",
    "dart-agent": "dart_agent.commands.agent_cli",
    "dart-train": "dart_train.commands.train_cli",
}
CHAT = "--policy chat --model m --engine-url {url}"
EVAL = f"dart-agent eval fake/two-steps --n 2 --timeout 4 {CHAT}"
RUN = f"dart-agent run fake/two-steps --timeout 4 {CHAT}"
READING = (
    "dart-train data status CONFIG", "dart-train data check CONFIG", "dart-train report CONFIG",
    "dart-train status NAME", "dart-agent compare A B", "dart-agent export A B", "dart-gym status --url ws://127.0.0.1:9",
)  # fmt: skip
LIMIT_S = 100.0


@dataclass(frozen=True)
class Case:
    """One cell: in a situation, a command; `shell` is what surrounds it."""

    situation: str
    command: str
    shell: str = "{}"
    answer: str = ""
    interrupt_after_s: float = 0.0


def cases() -> list[Case]:
    """Return every cell of the table."""
    found = [Case("nothing there", command) for command in READING]
    found += [Case("wrong directory", command) for command in READING[:2]]
    found.append(Case("connection refused", RUN, answer="refused"))
    for command in (EVAL,):
        found.append(Case("connection refused", command, answer="refused"))
        for answer, situation in (
            ("hang", "server hangs"), ("401", "401"), ("429", "429"), ("500", "500"), ("html", "HTML instead of JSON"),
            ("half", "half a reply"),
        ):  # fmt: skip
            found.append(Case(situation, command, answer=answer))
    found.append(Case("everything lost", EVAL, answer="500"))
    found.append(Case("some lost", f"{EVAL} --max-lost 0", answer="some"))
    found.append(Case("disk full", "dart-gym tasks list", "{} > /dev/full"))
    found.append(Case("no permission", f"{EVAL} --out /proc/nowhere", answer="500"))
    found.append(Case("no permission", "dart-train run CONFIG --plain --runs-dir /proc/nowhere"))
    found.append(Case("Ctrl-C", EVAL.replace(" --timeout 4", ""), answer="hang", interrupt_after_s=8.0))
    found.append(Case("closed pipe", "dart-gym tasks list", "{} | head -1"))
    found.append(Case("no terminal", "dart-gym tasks list", "setsid {} < /dev/null"))
    return found


class _Handler(BaseHTTPRequestHandler):
    kind = ""
    asked = 0

    def do_POST(self) -> None:
        type(self).asked += 1
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        kind = self.kind if self.kind != "some" else ("500" if self.asked <= 5 else "text")
        if kind == "hang":
            time.sleep(60)
        body, kind_of = b"<html>hello</html>", "text/html"
        if kind == "half":
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b'{"choices": [')
            return
        if kind == "text":
            body, kind_of = (
                b'{"choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}]}',
                "application/json",
            )
        self.send_response(int(kind) if kind.isdigit() else 200)
        self.send_header("Content-Type", kind_of)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def server(kind: str) -> Iterator[str]:
    """A server of one kind of answer; yields the address of its API."""
    if kind in ("", "refused"):
        yield "http://127.0.0.1:9/v1"
        return
    http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"kind": kind, "asked": 0}))
    http.daemon_threads = True
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}/v1"
    finally:
        http.shutdown()


def run(case: Case) -> tuple[int, str, list[str]]:
    """Run a case in a directory of its own; return its exit status, its last line, and the files that it made there."""
    with tempfile.TemporaryDirectory(prefix="failures-") as folder, server(case.answer) as url:
        config = Path(folder) / "mine.yaml"
        config.write_text("name: mine\nrollout: {tasks: [fake/button]}\n")
        program, _, rest = case.command.format(url=url).partition(" ")
        rest = rest.replace("CONFIG", "mine.yaml").replace("NAME", "mine")
        if case.situation == "wrong directory":
            rest += " --runs-dir elsewhere"
        code = f"from {MODULES[program]} import app as a; a()" if program == "dart-gym" else ""
        code = code or f"from {MODULES[program]} import main; main()"
        line = case.shell.format(f"{sys.executable} -c '{code}' {rest}")
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "400", "NO_COLOR": "1"}
        process = subprocess.Popen(
            ["bash", "-o", "pipefail", "-c", line], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        if case.interrupt_after_s:
            time.sleep(case.interrupt_after_s)
            os.killpg(process.pid, signal.SIGINT)
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output = f"{process.communicate()[0]}\nno end within {LIMIT_S:.0f} s"
        lines = [one.strip() for one in output.splitlines() if one.strip()]
        made = sorted(path.name for path in Path(folder).iterdir() if path != config)
        return process.returncode, steady(lines[-1] if lines else "", folder), made


def steady(line: str, folder: str) -> str:
    """A line without what differs from run to run. Pure."""
    line = line.replace(folder, "DIR").replace(str(ROOT), "CHECKOUT")
    line = re.sub(r"127\.0\.0\.1:(?!9\b)[0-9]+", "127.0.0.1:PORT", line)
    return re.sub(r"\b[0-9]+\.[0-9]+ s\b", "N s", line)[:220]


def page(every: list[Case], ran: Callable[[Case], tuple[int, str, list[str]]] = run) -> str:
    """The page of some cases."""
    lines = [
        "# When something is wrong",
        "",
        "How the commands end, and the last line that they print. `python scripts/failure_table.py` writes this page:",
        "it runs each command. `CONFIG` is a configuration whose run was never begun, `A` and `B` do not exist.",
        "",
        "Exit status: 0 it is done, 1 it is not, 2 the command was written wrongly, 130 Ctrl-C; 78 in a supervised",
        "process that would fail again. `--debug` prints the traceback of any error. A wait of more than 10 seconds",
        "and each kind of retry are lines on stderr; `--timeout` bounds one decision of a policy, `--max-lost` the",
        "episodes that may be lost.",
    ]
    with ThreadPoolExecutor(6) as threads:
        ends = dict(zip(every, threads.map(ran, every), strict=True))
    for situation in dict.fromkeys(case.situation for case in every):
        lines += [
            "",
            f"## {situation[0].upper()}{situation[1:]}",
            "",
            "| command | status | last line |",
            "|---|---|---|",
        ]
        for case in (one for one in every if one.situation == situation):
            status, last, made = ends[case]
            command = case.shell.format(case.command.replace(CHAT, "--policy chat ...").replace(" --timeout 4", ""))
            cells = [f"`{command}`", str(status), f"`{last}`" if last else "(none)"]
            if made and "--out" not in command:
                cells[2] += f" and it made {', '.join(made)}"
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run all cases and write the page."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "failures.md"
    try:
        out.write_text(page(cases()), encoding="utf-8")
    except OSError as error:
        sys.exit(f"cannot write {out}: {os.strerror(error.errno or errno.EIO)}")
    print(out)


if __name__ == "__main__":
    main()
