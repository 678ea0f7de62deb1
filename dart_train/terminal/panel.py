"""The terminal's view of a run while it runs: phases, progress, live numbers. Fits 80 x 24.

`Panel` reads what the processes write down (JSON lines in `metrics/`); `dashboard.draw` is a pure function of what it
found. Without a terminal (or with `plain`) one line per phase and one every few seconds is printed instead.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.logging import RichHandler

from dart_train.config.run_config import RunConfig
from dart_train.core.metrics_log import parse_line
from dart_train.run.run_directory import RunDirectory, disk_is_full
from dart_train.run.supervisor import Supervisor
from dart_train.terminal.dashboard import Phase, View, clock, draw

MAX_HISTORY = 4096
PLAIN_INTERVAL_S = 10.0
SILENT_S = 15.0
"""Seconds without a line after which the rollout service counts as stuck; it writes one a second."""

REFRESH_PER_S = 4


class Tail:
    """Follows one JSON-lines file; keeps the newest object. A line counts once it is whole; damaged ones do not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last: dict[str, Any] = {}
        self._offset = 0
        self._rest = b""

    def poll(self) -> list[dict[str, Any]]:
        """The objects that were added since the last call."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            if file.seek(0, 2) < self._offset:  # begun anew
                self._offset, self._rest = 0, b""
            file.seek(self._offset)
            data = file.read()
        self._offset += len(data)
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        rows = [row for line in lines if (row := parse_line(line, self.path)) is not None]
        if rows:
            self.last = rows[-1]
        return rows


def take_line(view: View, row: dict[str, Any]) -> None:
    """Take a line of the rollout service into a view's history."""
    success = {task: rate for task, rate in row.get("success", {}).items() if rate is not None}
    known = dict(success)
    if success:
        known["mean"] = sum(success.values()) / len(success)
    if (speed := row.get("actions_per_min")) is not None:
        known["speed"] = speed
    for name, value in known.items():
        view.history.setdefault(name, deque(maxlen=MAX_HISTORY)).append(value)


def take_budget(view: View, row: dict[str, Any]) -> None:
    """Take from a line of the rollout service how far it is, by the budget that is nearer to its end."""
    counts = {
        "rollouts": (row.get("rollouts", 0), row.get("budget") or 0),
        "actions": (row.get("played_actions", 0), row.get("budget_actions") or 0),
    }
    shares = {unit: done / total for unit, (done, total) in counts.items() if total}
    view.budget_unit = max(shares, key=lambda unit: shares[unit], default="rollouts")
    view.done, view.total = counts[view.budget_unit]


class Panel:
    """Shows a run. A context manager; call `refresh` a few times a second."""

    def __init__(
        self, config: RunConfig, run: RunDirectory, *, plain: bool = False, console: Console | None = None
    ) -> None:
        self.console = console or Console(stderr=False)
        self.view = View(config.name)
        self._plain = plain or not self.console.is_terminal
        self._live: Live | None = None
        self._progress = Tail(run.metrics("progress"))
        self._rollout = Tail(run.metrics("rollout"))
        self._trainer = Tail(run.metrics("trainer"))
        self._data = Tail(run.metrics("data"))
        self._said = 0.0
        self._waited: list[str] = []
        self._waits = ""
        self._root, self._log = run.root, run.logs / "rollout.log"

    def __enter__(self) -> Panel:
        if not self._plain:
            self._live = Live(console=self.console, refresh_per_second=REFRESH_PER_S, transient=False)
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live is not None:
            self._live.update(self._drawn())
            self._live.stop()

    def set_phases(self, phases: list[tuple[str, str, bool]]) -> None:
        """Name the phases: (name, title, whether it is finished already)."""
        self.view.phases = [Phase(name, title, finished) for name, title, finished in phases]

    def begin(self, name: str) -> None:
        """A phase starts."""
        self.view.current = name
        self.view.done = 0.0
        self.view.total = 0.0
        self.view.detail = ""
        self._waits = ""
        phase = self._phase(name)
        phase.started = time.monotonic()
        self._progress.poll()
        if self._plain:
            self.console.print(f"{phase.title} ...")

    def finish(self, name: str) -> None:
        """A phase is over."""
        phase = self._phase(name)
        phase.finished = True
        phase.seconds = time.monotonic() - (phase.started or time.monotonic())
        if self._plain:
            self.console.print(f"{phase.title}: done in {clock(phase.seconds)}")

    def refresh(self, supervisor: Supervisor, waiting: Sequence[str] = ()) -> None:
        """Read new lines and show them; `waiting`: what waits for nodes, while processes report their own waits."""
        view = self.view
        for row in self._progress.poll():
            if row.get("phase") not in (None, view.current):
                continue
            if "waiting" in row:
                self._waits = row["waiting"]
                continue
            view.done, view.total = row.get("done", 0.0), row.get("total", 0.0)
            view.detail = row.get("detail", "")
        if view.current == "rl":
            self._read_training()
        view.alerts = ["the disk is full: free some space, the run goes on then"] if disk_is_full(self._root) else []
        silent = time.time() - view.rollout.get("t", time.time())
        if view.current == "rl" and silent > SILENT_S:
            view.alerts.append(f"the rollout service has said nothing for {clock(silent)}: see {self._log}")
        waiting = [*waiting, *([self._waits] if self._waits else ())]
        view.alerts += waiting
        if self._live is None and list(waiting) != self._waited:
            self._waited = list(waiting)
            for line in waiting:
                self.console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)
        view.restarts = {name: watched.restarts for name, watched in supervisor.processes.items()}
        if self._live is not None:
            self._live.update(self._drawn())
        elif (view.total or view.done) and time.monotonic() - self._said > PLAIN_INTERVAL_S:
            self._said = time.monotonic()
            self.console.print(plain_line(view), highlight=False, markup=False, soft_wrap=True)

    def _read_training(self) -> None:
        view = self.view
        for row in self._rollout.poll():
            take_line(view, row)
        self._trainer.poll()
        self._data.poll()
        view.rollout = self._rollout.last
        view.trainer = self._trainer.last
        view.data = self._data.last
        take_budget(view, view.rollout)

    def _drawn(self) -> RenderableType:
        return draw(self.view, time.monotonic(), self.console.width, self.console.height)

    def _phase(self, name: str) -> Phase:
        return next(phase for phase in self.view.phases if phase.name == name)


class RolloutPanel:
    """Shows one rollout service of this process, and its log above. A context manager."""

    def __init__(self, name: str, console: Console) -> None:
        self.view = View(name, current="rl")
        self._console = console
        self._live = Live(console=console, refresh_per_second=REFRESH_PER_S)
        self._handlers: list[logging.Handler] = []

    def __enter__(self) -> RolloutPanel:
        log = logging.getLogger()
        self._handlers, log.handlers = log.handlers, [RichHandler(console=self._console, show_path=False)]
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()
        logging.getLogger().handlers = self._handlers

    def refresh(self, row: dict[str, Any]) -> None:
        """Show the service's present figures."""
        view = self.view
        take_line(view, row)
        view.rollout = row
        take_budget(view, row)
        self._live.update(draw(view, time.monotonic(), self._console.width, self._console.height))


def plain_line(view: View) -> str:
    """One line for logs."""
    if view.current != "rl":
        return f"  {view.done:,.0f}/{view.total:,.0f} {view.unit} {view.detail}"
    success = [rate for rate in view.rollout.get("success", {}).values() if rate is not None]
    mean = f"{100 * sum(success) / len(success):.0f} %" if success else "–"
    step, speed = view.trainer.get("step", 0), view.rollout.get("actions_per_min") or 0
    of = f"/{view.total:,.0f}" if view.total else ""  # a budget of minutes has no number of rollouts
    return f"  {view.done:,.0f}{of} {view.unit} · success {mean} · step {step} · {speed:,.0f} actions/min"
