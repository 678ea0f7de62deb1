"""What the terminal shows while a run goes on: phases, progress, live numbers. Fits 80 x 24.

`Watch` reads what the modules write down (JSON lines in `metrics/`); `draw` is a pure function of what it found.
Without a terminal (or with `plain`) one line per phase and one every few seconds is printed instead.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel as Box
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dart_train.config import RunConfig
from dart_train.metrics import engine_use, parse_line
from dart_train.rundir import RunDirectory
from dart_train.supervisor import Supervisor

SPARKS = " ▁▂▃▄▅▆▇█"
SPARK_POINTS = 12
SHOWN_TASKS = 14
SHOWN_ENGINES = 4
MAX_HISTORY = 4096
PLAIN_INTERVAL_S = 10.0
REFRESH_PER_S = 4
UNITS = {"demonstrate": "episodes", "warmup": "steps", "rl": "rollouts", "constant": "episodes"}
UNITS |= dict.fromkeys(("base", "before", "after", "greedy_before", "greedy_after"), "episodes")


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


@dataclass(slots=True)
class Phase:
    """One phase as the panel shows it."""

    name: str
    title: str
    finished: bool = False
    started: float | None = None
    seconds: float = 0.0


@dataclass(slots=True)
class View:
    """Everything that is drawn."""

    name: str
    phases: list[Phase] = field(default_factory=list)
    current: str = ""
    done: float = 0.0
    total: float = 0.0
    detail: str = ""
    rollout: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    history: dict[str, deque[float]] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)


def spark(values: list[float], width: int = SPARK_POINTS) -> str:
    """A line of block characters for values in [0, 1], all of the history thinned out, the newest to the right."""
    if len(values) > width:
        values = [values[round(i * (len(values) - 1) / (width - 1))] for i in range(width)]
    return "".join(SPARKS[min(8, max(0, round(value * 8)))] for value in values).rjust(width)


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def draw(view: View, now: float) -> RenderableType:
    """The whole panel."""
    parts: list[RenderableType] = [_header(view, now), _phases(view, now)]
    if view.current == "rl" and view.rollout:
        grid = Table.grid(expand=True, padding=(0, 0))
        grid.add_column(ratio=1)
        grid.add_column(ratio=1)
        grid.add_row(_success(view), _system(view))
        parts.append(grid)
    elif view.detail:
        parts.append(Text(f"  {view.detail}", style="dim", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def _header(view: View, now: float) -> RenderableType:
    phase = next((phase for phase in view.phases if phase.name == view.current), None)
    elapsed = now - phase.started if phase and phase.started else 0.0
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(justify="right", no_wrap=True)
    title = Text.assemble(
        (" DART ", "bold white on blue"), " ", (view.name, "bold"), "  ", phase.title if phase else ""
    )
    if view.total:
        share = min(1.0, view.done / view.total)
        left = f" · {clock(elapsed * (1 - share) / share)} left" if share > 0.03 else ""
        unit = UNITS.get(view.current, "")
        numbers = f"{view.done:,.0f}/{view.total:,.0f} {unit} · {clock(elapsed)}{left}"
        grid.add_row(title, ProgressBar(total=1.0, completed=share), numbers)
    else:
        grid.add_row(title, ProgressBar(total=None, animation_time=now), clock(elapsed))
    return grid


def _phases(view: View, now: float) -> RenderableType:
    text = Text()
    for phase in view.phases:
        mark, color, style = ("○", "dim", "dim")
        if phase.finished:
            mark, color, style = ("✓", "green", "dim")
        elif phase.name == view.current:
            mark, color, style = ("●", "blue", "bold")
        title = phase.title.replace(" ", "\N{NO-BREAK SPACE}")  # lines break between phases, not within
        text.append(f" {mark}\N{NO-BREAK SPACE}", color).append(f"{title} ", style)
    return text


def _success(view: View) -> RenderableType:
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", width=4)
    success = view.rollout.get("success", {})
    for task, rate in list(success.items())[:SHOWN_TASKS]:
        history = list(view.history.get(task, ()))
        table.add_row(task.split("/", 1)[-1], Text(spark(history), "blue"), _share(rate))
    if len(success) > SHOWN_TASKS:
        table.add_row(Text(f"and {len(success) - SHOWN_TASKS} more", "dim"), "", "")
    known = [rate for rate in success.values() if rate is not None]
    if known:
        mean = sum(known) / len(known)
        history = list(view.history.get("mean", ()))
        table.add_row(Text("mean", "bold"), Text(spark(history), "bold green"), Text(_share(mean), "bold green"))
    return Box(table, title="success, newest rollouts", title_align="left", border_style="dim", padding=(0, 1))


def _share(value: float | None) -> str:
    return " –" if value is None else f"{100 * value:3.0f}%"


def _system(view: View) -> RenderableType:
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis")
    rollout, trainer, data = view.rollout, view.trainer, view.data
    phases = sorted(rollout.get("desktops", {}).items(), key=lambda item: -item[1])
    table.add_row("desktops", " ".join(f"{name} {count}" for name, count in phases if count))
    engines = rollout.get("engines", [])
    for engine in engines[:SHOWN_ENGINES]:
        state = f"v{engine.get('version', 0)} {_share(engine.get('busy_share'))} busy {engine.get('in_flight', 0)} open"
        table.add_row(f"engine {str(engine.get('name', '')).removeprefix('engine-')}", state)
    if len(engines) > SHOWN_ENGINES:
        versions = [engine.get("version", 0) for engine in engines]
        table.add_row("", f"and {len(engines) - SHOWN_ENGINES} more, all v{min(versions)} to v{max(versions)}")
    table.add_row("in use", f"desktops {_share(rollout.get('env_utilisation'))} engines {_share(engine_use(rollout))}")
    table.add_row("speed", f"{rollout.get('actions_per_min') or 0:,.0f} actions/min")
    if trainer:
        ratio = trainer.get("sampling/importance_sampling_ratio/mean")
        table.add_row("trainer", f"step {trainer.get('step', 0)} · loss {_short(trainer.get('loss'))}")
        table.add_row("entropy", f"{_short(trainer.get('entropy'))} · ratio {_short(ratio)}")
        oldest = trainer.get("staleness/max")
        largest = "–" if oldest is None else f"{oldest:.0f}"
        table.add_row("staleness", f"mean {_short(trainer.get('staleness/mean'))} · max {largest}")
    if data:
        table.add_row("groups", f"{data.get('eligible_groups', 0)} ready")
        table.add_row("dropped", f"{data.get('no_signal', 0)} no signal {data.get('stale', 0)} stale")
    crashed = ", ".join(f"{name} x{count}" for name, count in view.restarts.items() if count)
    if crashed:
        table.add_row("restarted", Text(crashed, "yellow"))
    return Box(table, title="system", title_align="left", border_style="dim", padding=(0, 1))


def _short(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, (int, float)) else "–"


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

    def __enter__(self) -> Panel:
        if not self._plain:
            self._live = Live(console=self.console, refresh_per_second=REFRESH_PER_S, transient=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(draw(self.view, time.monotonic()))
            self._live.stop()

    def set_phases(self, phases: list[tuple[str, str, bool]]) -> None:
        """Name the phases: (name, title, whether it is finished already)."""
        self.view.phases = [Phase(name, title, finished) for name, title, finished in phases]

    def begin(self, name: str) -> None:
        """A phase starts."""
        self.view.current, self.view.done, self.view.total, self.view.detail = name, 0.0, 0.0, ""
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

    def refresh(self, supervisor: Supervisor) -> None:
        """Read what is new and show it."""
        view = self.view
        for row in self._progress.poll():
            view.done, view.total = row.get("done", 0.0), row.get("total", 0.0)
            view.detail = row.get("detail", "")
        if view.current == "rl":
            self._read_training()
        view.restarts = {name: module.restarts for name, module in supervisor.modules.items()}
        if self._live is not None:
            self._live.update(draw(view, time.monotonic()))
        elif view.total and time.monotonic() - self._said > PLAIN_INTERVAL_S:
            self._said = time.monotonic()
            self.console.print(plain_line(view), highlight=False, markup=False, soft_wrap=True)

    def _read_training(self) -> None:
        view = self.view
        for row in self._rollout.poll():
            success = {task: rate for task, rate in row.get("success", {}).items() if rate is not None}
            for task, rate in success.items():
                view.history.setdefault(task, deque(maxlen=MAX_HISTORY)).append(rate)
            if success:
                mean = sum(success.values()) / len(success)
                view.history.setdefault("mean", deque(maxlen=MAX_HISTORY)).append(mean)
        self._trainer.poll()
        self._data.poll()
        view.rollout, view.trainer, view.data = self._rollout.last, self._trainer.last, self._data.last
        view.done, view.total = view.rollout.get("rollouts", 0), view.rollout.get("budget") or 0

    def _phase(self, name: str) -> Phase:
        return next(phase for phase in self.view.phases if phase.name == name)


def plain_line(view: View) -> str:
    """One line for logs."""
    if view.current != "rl":
        return f"  {view.done:,.0f}/{view.total:,.0f} {UNITS.get(view.current, '')} {view.detail}"
    success = [rate for rate in view.rollout.get("success", {}).values() if rate is not None]
    mean = f"{100 * sum(success) / len(success):.0f} %" if success else "–"
    step, speed = view.trainer.get("step", 0), view.rollout.get("actions_per_min") or 0
    return f"  {view.done:,.0f}/{view.total:,.0f} rollouts · success {mean} · step {step} · {speed:,.0f} actions/min"
