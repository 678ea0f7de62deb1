"""How a run looks in a terminal: a pure function of what its processes wrote. From 80 x 24 on; more room shows more.

Every figure may be missing: an older line, a process that has just begun. What is missing is a dash or not there.
"""

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel as Box
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dart_train.core.judge_counts import judge_faults
from dart_train.core.metrics_log import engine_use
from dart_train.core.training_alarms import raised_in

SPARKS = " ▁▂▃▄▅▆▇█"
SPARK_POINTS = 12
UNITS = {"demonstrate": "episodes", "warmup": "steps", "constant": "episodes"}
UNITS |= dict.fromkeys(("base", "before", "after", "greedy_before", "greedy_after"), "episodes")

PHASE_STYLES = {"step": "green", "reset": "yellow", "generate": "blue", "connect": "red", "idle": "bright_black"}
"""Of a desktop: green and yellow where it works, blue where it waits for a model."""

STATE_STYLES = {"ready": "green", "updating": "cyan", "draining": "cyan", "starting": "yellow", "down": "red"}
WIDE = 110
"""Columns from which there are three boxes."""

FRAME_ROWS = 2
MAX_ALERTS = 3
SYSTEM_ROWS = 12
"""Rows of the box "system" in addition to engines and restarts."""


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
    """Everything that is drawn.

    Attributes:
        current: name of the present one; "rl" shows rollouts and training.
        total: 0 where it is not known.
        budget_unit: what is counted while rollouts are played: rollouts or actions.
        history: success by task and their "mean", and "speed" (actions per minute), oldest first.
        alerts: warnings for a person, in addition to the lines.
    """

    name: str
    phases: list[Phase] = field(default_factory=list)
    current: str = ""
    done: float = 0.0
    total: float = 0.0
    budget_unit: str = "rollouts"
    detail: str = ""
    rollout: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    history: dict[str, deque[float]] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    alerts: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    @property
    def unit(self) -> str:
        """Return the name of what `done` and `total` count."""
        return self.budget_unit if self.current == "rl" else UNITS.get(self.current, "")


def spark(values: list[float], width: int = SPARK_POINTS) -> str:
    """A line of block characters for values in [0, 1], all of the history thinned out, the newest to the right."""
    if len(values) > width:
        values = [values[round(i * (len(values) - 1) / (width - 1))] for i in range(width)]
    return "".join(SPARKS[min(8, max(0, round(value * 8)))] for value in values).rjust(width)


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def bar(share: float | None, width: int) -> str:
    """A bar of eighths of a block."""
    eighths = round(min(1.0, max(0.0, share or 0.0)) * width * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(width)


def stacked(parts: Mapping[str, int], width: int) -> list[tuple[str, int]]:
    """Columns of a stacked bar: proportional, at least one for everything there, `width` in all, if that can be."""
    present = {name: count for name, count in parts.items() if count > 0}
    total = sum(present.values())
    if not total or len(present) > width:
        return []
    columns = {name: max(1, count * width // total) for name, count in present.items()}
    while (excess := sum(columns.values()) - width) != 0:
        name = max(columns, key=lambda one: (columns[one] - present[one] * width / total) * (1 if excess > 0 else -1))
        if excess > 0 and columns[name] == 1:
            name = max(columns, key=lambda one: columns[one])
        columns[name] -= 1 if excess > 0 else -1
    return list(columns.items())


def draw(view: View, now: float, width: int = 80, height: int = 24) -> RenderableType:
    """The whole panel, which takes no more than `height` rows."""
    parts: list[RenderableType] = [_header(view, now)]
    if view.phases:
        parts.append(_phases(view))
    alerts = _alerts(view)
    if view.current == "rl" and view.rollout:
        rows = height - FRAME_ROWS - len(alerts) - _rows_of_head(view, width)
        parts.append(_body(view, width, rows))
    elif view.detail:
        parts.append(Text(f"  {view.detail}", style="dim", no_wrap=True, overflow="ellipsis"))
    return Group(*parts, *alerts)


def _rows_of_head(view: View, width: int) -> int:
    length = sum(len(phase.title) + 4 for phase in view.phases)
    return 1 + -(-length // max(20, width - 12))


def _body(view: View, width: int, rows: int) -> RenderableType:
    """Boxes next to one another, with `rows` rows inside."""
    grid = Table.grid(expand=True, padding=(0, 0))
    if width >= WIDE:
        for _ in range(3):
            grid.add_column(ratio=1)
        grid.add_row(
            _success(view, rows, SPARK_POINTS + 4),
            _box("rollouts", _rollout_rows(view, rows - 6, 8)),
            _box("learning", [*_trainer_rows(view), *_loss_rows(view)]),
        )
    else:
        grid.add_column(ratio=1)
        grid.add_column(ratio=1)
        engines = max(1, rows - SYSTEM_ROWS - bool(_restarted(view)))
        system = [*_rollout_rows(view, engines, 7), *_trainer_rows(view), *_loss_rows(view)]
        grid.add_row(_success(view, rows, SPARK_POINTS), _box("system", system))
    return grid


def _header(view: View, now: float) -> RenderableType:
    phase = next((phase for phase in view.phases if phase.name == view.current), None)
    started = phase.started if phase else view.started
    elapsed = now - started if started else 0.0
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(justify="right", no_wrap=True)
    title = Text.assemble(
        (" DART ", "bold white on blue"), " ", (view.name, "bold"), "  ", phase.title if phase else ""
    )
    unit = view.unit
    if view.total:
        share = min(1.0, view.done / view.total)
        left = f" · {clock(elapsed * (1 - share) / share)} left" if share > 0.03 else ""
        grid.add_row(
            title,
            ProgressBar(total=1.0, completed=share),
            f"{view.done:,.0f}/{view.total:,.0f} {unit} · {clock(elapsed)}{left}",
        )
    else:
        so_far = f"{view.done:,.0f} {unit} · " if view.done else ""
        grid.add_row(title, ProgressBar(total=None, animation_time=now), f"{so_far}{clock(elapsed)}")
    return grid


def _phases(view: View) -> RenderableType:
    text = Text()
    for phase in view.phases:
        mark = "○"
        color = "dim"
        style = "dim"
        if phase.finished:
            mark = "✓"
            color = "green"
            style = "dim"
        elif phase.name == view.current:
            mark = "●"
            color = "blue"
            style = "bold"
        title = phase.title.replace(" ", "\N{NO-BREAK SPACE}")  # lines break between phases, not within
        text.append(f" {mark}\N{NO-BREAK SPACE}", color).append(f"{title} ", style)
    return text


def _success(view: View, rows: int, points: int) -> RenderableType:
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", width=4)
    success, left_out = view.rollout.get("success", {}), view.rollout.get("left_out", {})
    room = rows - 1 if len(success) < rows else rows - 2  # for the mean, and for those that are not shown
    first = sorted(success, key=lambda task: task not in left_out)
    for task in first[: max(0, room)]:
        history, name = list(view.history.get(task, ())), task.split("/", 1)[-1]
        shown = Text("left out".rjust(points), "red") if task in left_out else Text(spark(history, points), "blue")
        table.add_row(Text(name, "red" if task in left_out else ""), shown, _share(success[task]))
    if len(success) > room:
        table.add_row(Text(f"and {len(success) - room} more", "dim"), "", "")
    known = [rate for rate in success.values() if rate is not None]
    if known:
        mean = sum(known) / len(known)
        history = list(view.history.get("mean", ()))
        line = Text(spark(history, points), "bold green")
        table.add_row(Text("mean", "bold"), line, Text(_share(mean), "bold green"))
    return Box(table, title="success, newest rollouts", title_align="left", border_style="dim", padding=(0, 1))


_Row = tuple[str, RenderableType]


def _box(title: str, rows: Iterable[_Row]) -> RenderableType:
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for row in rows:
        table.add_row(*row)
    return Box(table, title=title, title_align="left", border_style="dim", padding=(0, 1))


def _rollout_rows(view: View, engines: int, bar_width: int) -> list[_Row]:
    rollout = view.rollout
    rows: list[_Row] = [
        ("desktops", _desktop_bar(rollout, bar_width + 18)),
        ("", _desktop_words(rollout)),
        *_engine_rows(rollout, engines, bar_width),
        ("in use", f"desktops {_share(rollout.get('env_utilisation'))} engines {_share(engine_use(rollout))}"),
        ("speed", _speed(view)),
        ("waiting", _waiting(rollout)),
    ]
    stale = rollout.get("staleness")
    if stale and not view.trainer:
        rows.append(("staleness", f"mean {_short(stale.get('mean'))} · max {stale.get('max', 0):.0f}"))
    return rows


def _desktop_bar(rollout: Mapping[str, Any], width: int) -> Text:
    phases = rollout.get("desktops", {})
    ordered = {name: phases.get(name, 0) for name in (*PHASE_STYLES, *(set(phases) - set(PHASE_STYLES)))}
    return Text.assemble(*(("▇" * columns, PHASE_STYLES.get(name, "")) for name, columns in stacked(ordered, width)))


def _desktop_words(rollout: Mapping[str, Any]) -> Text:
    phases = sorted(rollout.get("desktops", {}).items(), key=lambda item: -item[1])
    words = Text()
    for name, count in phases:
        if count:
            words.append(f"{name} {count} ", PHASE_STYLES.get(name, ""))
    return words


def _engine_rows(rollout: Mapping[str, Any], most: int, bar_width: int) -> list[_Row]:
    engines = rollout.get("engines", [])
    if len(engines) > most:
        first = sorted(engines, key=lambda engine: engine.get("state", "ready") in ("ready", "updating", "draining"))
        most = max(1, most - 1)
        versions = [engine.get("version", 0) for engine in engines]
        more = f"and {len(engines) - most} more, all v{min(versions)} to v{max(versions)}"
        return [*(_engine_row(engine, bar_width) for engine in first[:most]), ("", more)]
    return [_engine_row(engine, bar_width) for engine in engines]


def _engine_row(engine: Mapping[str, Any], bar_width: int) -> _Row:
    name, state = str(engine.get("name", "")).removeprefix("engine-"), str(engine.get("state", "ready"))
    text = Text().append("● ", STATE_STYLES.get(state, ""))
    if why := engine.get("why_down"):
        return f"engine {name}", text.append(f"{state}: {why}", "red")
    share, limit = engine.get("busy_share"), engine.get("limit")
    text.append(f"v{engine.get('version', 0)} ").append(bar(share, bar_width), "blue")
    text.append(f" {_share(share)} ".replace("  ", " ")).append(f"{engine.get('in_flight', 0)}")
    return f"engine {name}", text.append(f"/{limit}" if limit else " open", "dim")


def _speed(view: View) -> Text:
    speed = view.rollout.get("actions_per_min") or 0
    history = list(view.history.get("speed", ()))
    most = max(history, default=0.0) or 1.0
    return Text(f"{speed:,.0f} actions/min ").append(spark([value / most for value in history], 8), "green")


def _waiting(rollout: Mapping[str, Any]) -> Text:
    """For the trainer, for a replica, for the database."""
    behind = "" if rollout.get("admitted", True) else "trainer is behind · "
    queue, unrecorded = rollout.get("engine_queue", 0), rollout.get("unrecorded", 0)
    return Text(behind, "yellow").append(f"{queue} requests · {unrecorded} to record", "default")


def _trainer_rows(view: View) -> list[_Row]:
    trainer = view.trainer
    if not trainer:
        return []
    ratio, oldest = trainer.get("sampling/importance_sampling_ratio/mean"), trainer.get("staleness/max")
    largest = "–" if oldest is None else f"{oldest:.0f}"
    return [
        ("trainer", f"step {trainer.get('step', 0)} · loss {_short(trainer.get('loss'))}"),
        ("entropy", f"{_short(trainer.get('entropy'))} · ratio {_short(ratio)}"),
        ("staleness", f"mean {_short(trainer.get('staleness/mean'))} · max {largest}"),
    ]


def _loss_rows(view: View) -> list[_Row]:
    rollout, data = view.rollout, view.data
    rows: list[_Row] = []
    if data:
        rows.append(("groups", f"{data.get('eligible_groups', 0)} ready"))
        rows.append(("dropped", f"{data.get('no_signal', 0)} no signal {data.get('stale', 0)} stale"))
    lost = rollout.get("lost", 0)
    given_up = rollout.get("given_up", 0)
    faults = rollout.get("engine_faults", {})
    if lost or given_up:
        rows.append(("lost", Text(f"{lost} rollouts" + f" · {given_up} given up" * bool(given_up), "yellow")))
    if faults:
        rows.append(("faults", Text(" · ".join(f"{kind} {count}" for kind, count in faults.items()), "yellow")))
    if crashed := _restarted(view):
        rows.append(("restarted", Text(crashed, "yellow")))
    return rows


def _restarted(view: View) -> str:
    return ", ".join(f"{name} x{count}" for name, count in view.restarts.items() if count)


def _alerts(view: View) -> list[RenderableType]:
    """A line for each thing that is away or left out, the gravest first."""
    lines = [(alert, "bold red") for alert in view.alerts]
    if view.current == "rl":
        for availability in view.rollout.get("unavailable", {}).values():
            lines.append(
                (f"{availability['what']} for {clock(availability['seconds'])}: {availability['reason']}", "bold red")
            )
        if away := view.rollout.get("teacher", {}).get("away"):
            lines.append((f"{away}; training goes on without it", "yellow"))
        for name, counts in view.rollout.get("judges", {}).items():
            lines += [(f"the judge {name}: {fault}", "yellow") for fault in judge_faults(counts).values()]
        for task, reason in view.rollout.get("left_out", {}).items():
            lines.append((f"{task} is left out: {reason}", "yellow"))
        for alarm in raised_in(view.trainer):
            lines.append((f"{alarm.meaning}: {alarm.advice}", "bold red"))
        for version, reason in view.rollout.get("weights_skipped", {}).items():
            lines.append((f"version {version} is skipped: {reason}", "yellow"))
    if len(lines) > MAX_ALERTS:
        lines = [*lines[: MAX_ALERTS - 1], (f"and {len(lines) - MAX_ALERTS + 1} more of this kind", "yellow")]
    return [Text(f" ▲ {line}", style, no_wrap=True, overflow="ellipsis") for line, style in lines]


def _share(value: float | None) -> str:
    return " –" if value is None else f"{100 * value:3.0f}%"


def _short(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, (int, float)) else "–"
