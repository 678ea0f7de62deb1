"""The state of a run, from its directory: `dart-train status` and `stop`, here and for other nodes."""

import contextlib
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dart_gym.utils.processes import has_ended
from dart_train.core.judge_counts import judge_counts, judge_faults, judge_said
from dart_train.core.metrics_log import last_of_lives, read_metrics
from dart_train.core.training_alarms import Alarm, raised_in
from dart_train.run.run_directory import RunDirectory, RunDirectoryError, RunState, write_json
from dart_train.run.supervisor import Supervisor, log_tail

FILE = "processes.json"


def write_processes(run: RunDirectory, supervisors: list[Supervisor], waiting: list[str]) -> None:
    """Write down the processes of a launcher, with the `node` of each process that runs elsewhere."""
    processes = {
        name: {"node": getattr(watched.process, "node", ""), "runs": watched.running, "restarts": watched.restarts}
        for supervisor in supervisors
        for name, watched in supervisor.processes.items()
    }
    write_json(run.root / FILE, {"time": time.time(), "processes": processes, "waiting": waiting})


def launcher(run: RunDirectory) -> int | None:
    """Return the process id of the launcher that runs a run; None if no launcher does."""
    try:
        pid, _, started = (run.root / "run.lock").read_text().strip().partition(" ")
    except OSError:
        return None
    return int(pid) if started.isdigit() and not has_ended(int(pid), int(started)) else None


def status(run: RunDirectory) -> str:
    """Return the state of a run as lines of text.

    Raises:
        RunDirectoryError: if there is no such run.
    """
    _check(run)
    state, pid = RunState(run.root / "state.json"), launcher(run)
    phases = state.values["phases"]
    done = [name for name in phases if state.finished(name)]
    now = next((name for name in reversed(phases) if name not in done), "")
    present = f"running{f', in {now}' if now else ''}" if pid else "not running"
    lines = [f"{run.root.name}: {present} (done: {', '.join(done) or 'nothing'})"]
    facts: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        facts = json.loads((run.root / FILE).read_text())
    for name, process in facts.get("processes", {}).items() if pid else ():
        where = f" on {process['node']}" if process["node"] else ""
        again = f", started again {process['restarts']} times" if process["restarts"] else ""
        lines.append(f"  {name}{where}: {'runs' if process['runs'] else 'does not run'}{again}")
    lines += [f"  {line}" for line in facts.get("waiting", ()) if pid]
    lines += [f"  alarm {alarm.name}: {alarm.meaning}; {alarm.advice}" for alarm in _alarms(run)]
    ends = last_of_lives(read_metrics(run.metrics("rollout")))
    lines += [f"  {line}" for line in (*_forks(ends), *_teacher(ends), *_judges(ends))]
    if not pid:
        lines.append("  the command that began it resumes it")
    return "\n".join(lines)


def _alarms(run: RunDirectory) -> list[Alarm]:
    """Return the alarms that the newest metrics line of the trainer raises."""
    newest: dict[str, Any] = {}
    for row in read_metrics(run.metrics("trainer")):
        newest = row
    return raised_in(newest)


def _forks(ends: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line about forks, from the last metrics line of each life; empty for a run without forks."""
    if not any("forks" in row for row in ends):
        return []
    given_up: Counter[str] = Counter()
    for row in ends:
        given_up.update(row.get("forks_given_up") or {})
    tasks = ", ".join(f"{task} ({count})" for task, count in sorted(given_up.items()))
    gone = f"; {given_up.total()} given up, since a replay came out differently: {tasks}" if given_up else ""
    return [f"forks: {sum(row.get('forks', 0) for row in ends)}{gone}"]


def _teacher(ends: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line about the teacher, from the last metrics line of each life; empty without a teacher."""
    lives = [said for row in ends if (said := row.get("teacher"))]
    if not lives:
        return []
    taught, untaught = (sum(said[name] for said in lives) for name in ("steps", "untaught"))
    away = f"; {lives[-1]['away']}; training goes on without it" if lives[-1]["away"] else ""
    return [f"teacher: {taught} steps taught, {untaught} episodes not{away}"]


def _judges(ends: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line about each judge and the faults that its answers show; empty without judges."""
    return [
        "; ".join([f"judge {name}: {judge_said(counts)}", *judge_faults(counts).values()])
        for name, counts in judge_counts(ends).items()
    ]


def stop(run: RunDirectory) -> str:
    """Tell the launcher of a run to stop; return a message for the user. Raises `RunDirectoryError`."""
    _check(run)
    pid = launcher(run)
    if pid is None:
        return f"{run.root.name} is not running"
    os.kill(pid, signal.SIGTERM)
    return f"{run.root.name} is stopping; the same command resumes it"


def log(run: RunDirectory, process: str, lines: int = 40) -> str:
    """Return the end of a process's log.

    Raises:
        RunDirectoryError: if there is no such run or log.
    """
    _check(run)
    names = sorted(path.stem for path in run.logs.glob("*.log"))
    if process not in names:
        raise RunDirectoryError(f"{run.root.name} has no log of {process!r}; there are: {', '.join(names)}")
    return "\n".join(log_tail(run.logs / f"{process}.log").splitlines()[-lines:])


def _check(run: RunDirectory) -> None:
    if not run.config.exists():
        near = ", ".join(sorted(path.parent.name for path in run.root.parent.glob("*/config.yaml")))
        raise RunDirectoryError(
            f"no run {run.root.name!r} in {run.root.parent}; "
            + (f"there are: {near}" if near else "`dart-train run CONFIG` begins one, --runs-dir names another place")
        )


class RunWindow:
    """A view of a run directory for other nodes; Ray runs it as an actor on the launcher's node."""

    def __init__(self, root: str) -> None:
        self._run = RunDirectory(Path(root))

    def ask(self, what: str, arguments: dict[str, Any]) -> str:
        """Return the answer of `status`, `stop` or `log`."""
        answers: dict[str, Callable[..., str]] = {"status": status, "stop": stop, "log": log}
        return answers[what](self._run, **arguments)
