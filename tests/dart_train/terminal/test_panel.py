"""The panel: what it draws, and that it follows files that are being written."""

from __future__ import annotations

import io
import json
import re
import time
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from dart_train.config.run_config import parse_config
from dart_train.core.metrics_log import MetricsLog, engine_use, read_metrics
from dart_train.data.maintenance.data_service import DataService
from dart_train.data.manager.data_manager import DataManager
from dart_train.run.run_directory import RunDirectory
from dart_train.run.supervisor import ProcessSpec, Supervisor
from dart_train.terminal.dashboard import Phase, View, clock, draw, spark
from dart_train.terminal.panel import Panel, Tail, plain_line

TASKS = ["click-tab", "click-dialog-2", "focus-text-2", "grid-coordinate", "click-collapsible", "click-checkboxes-soft"]
ROLLOUT = {
    "rollouts": 4321,
    "budget": 8000,
    "success": {f"miniwob/{task}": 0.1 * index for index, task in enumerate(TASKS)},
    "desktops": {"reset": 1, "generate": 3, "step": 1, "idle": 0},
    "engines": [
        {"name": f"engine-{n}", "version": 123, "busy_share": 0.75 + 0.1 * n, "in_flight": 3, "state": "ready"}
        for n in range(2)
    ],
    "env_utilisation": 0.81,
    "actions_per_min": 2345.6,
}
TRAINER = {
    "step": 77,
    "loss": -0.0123,
    "entropy": 0.456,
    "staleness/mean": 1.25,
    "staleness/max": 3.0,
    "sampling/importance_sampling_ratio/mean": 0.987,
}
DATA = {"eligible_groups": 5, "no_signal": 640, "stale": 16}


def full_view() -> View:
    names = ["prepare", "demonstrate", "warmup", "before", "rl", "after", "constant", "report"]
    titles = ["model", "demonstrations", "warm-up", "test before", "training", "test after", "constant click", "report"]
    return View(
        "quickstart",
        phases=[
            Phase(name, title, finished=index < 4, started=10.0)
            for index, (name, title) in enumerate(zip(names, titles, strict=True))
        ],
        current="rl",
        done=4321,
        total=8000,
        rollout=ROLLOUT,
        trainer=TRAINER,
        data=DATA,
        history={f"miniwob/{task}": deque([0.0, 0.5, 1.0] * 20) for task in TASKS} | {"mean": deque([0.2])},
        restarts={"rollout": 2, "learn": 0},
    )


def rendered(view: View, width: int = 80) -> list[str]:
    console = Console(width=width, height=24, file=io.StringIO(), force_terminal=False)
    console.print(draw(view, now=100.0))
    return console.file.getvalue().splitlines()


def test_everything_fits_80_by_24():
    lines = rendered(full_view())
    text = "\n".join(lines)
    assert len(lines) <= 24 and all(len(line) <= 80 for line in lines)
    for shown in (
        "4,321/8,000 rollouts", "generate 3", "v123", "75% 3 open", "desktops  81% engines  80%",
        "2,346 actions/min", "step 77 · loss -0.012", "0.456", "ratio 0.987", "mean 1.250 · max 3", "5 ready",
        "640 no signal 16 stale", "rollout x2", "click-tab", "mean", "50%",
    ):  # fmt: skip
        assert shown in text, f"{shown!r} is not in\n{text}"
    assert text.count("…") == 1  # of the longest task's name alone
    assert all(phase.title in text.replace("\N{NO-BREAK SPACE}", " ") for phase in full_view().phases)


def test_many_tasks_and_engines_still_fit():
    view = full_view()
    engines = [{"name": f"engine-{n}", "version": n, "busy_share": None, "in_flight": 0} for n in range(8)]
    view.rollout = {**ROLLOUT, "success": {f"osworld/{n}": None for n in range(203)}, "engines": engines}
    lines = rendered(view)
    assert len(lines) <= 24 and all(len(line) <= 80 for line in lines)
    text = "\n".join(lines)
    engines, tasks = sorted(int(number) for number in re.findall(r"and (\d+) more", text))
    assert 203 - tasks == len(re.findall(r"^│ \d+ ", text, re.MULTILINE)) >= 14 and 1 <= engines < 8
    assert "more, all v0 to v7" in text


@pytest.mark.parametrize(
    "changes",
    [
        {"rollout": {}, "trainer": {}, "data": {}},
        {"rollout": {"rollouts": 0}},
        {"rollout": {"rollouts": 1, "budget": None, "success": {"a/b": None}, "actions_per_min": None}},
        {"trainer": {"step": 1, "loss": None, "staleness/max": None}},
        {"current": "prepare", "total": 0.0, "rollout": {}, "detail": "[bold] of [/nonsense"},
        {"phases": [], "current": ""},
    ],
)
def test_what_is_not_measured_yet_is_no_error(changes):
    view = full_view()
    for name, value in changes.items():
        setattr(view, name, value)
    assert rendered(view)
    assert isinstance(plain_line(view), str)


def test_details_are_no_markup():
    view = full_view()
    view.current, view.detail = "before", "task [red]x[/]"
    assert "task [red]x[/]" in "\n".join(rendered(view))


@given(st.lists(st.floats(0, 1), max_size=60))
def test_a_spark_line_has_its_width_and_ends_with_the_newest(values):
    line = spark(values, 12)
    assert len(line) == 12
    if values:
        assert line[-1] == spark(values[-1:], 1)


def test_clock():
    assert [clock(0), clock(59.9), clock(3661)] == ["0:00", "0:59", "61:01"]


def test_tail_waits_for_whole_lines_and_passes_over_damage(tmp_path):
    path = tmp_path / "m.jsonl"
    tail = Tail(path)
    assert tail.poll() == [] and tail.last == {}
    path.write_bytes(b'{"a": 1}\n{"a"')
    assert tail.poll() == [{"a": 1}]
    with path.open("ab") as file:
        file.write(b': 2}\n{"cut off{"a": 3}\n\x00\x00\n[4]\n\n')
    assert tail.poll() == [{"a": 2}] and tail.last == {"a": 2}
    assert tail.poll() == []
    path.write_bytes(b'{"a": 5}\n')
    assert tail.poll() == [{"a": 5}]


def test_a_restarted_module_goes_on_below_a_cut_line(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"a": 1}\n{"a": 2')
    log = MetricsLog(path)
    log.write(a=3)
    log.close()
    assert [row["a"] for row in read_metrics(path)] == [1, 3]


def test_use_of_engines_is_a_mean_of_what_is_known():
    assert engine_use(ROLLOUT) == pytest.approx(0.8)
    assert engine_use({"engines": [{"busy_share": None}, {"busy_share": 0.5}]}) == 0.5
    assert engine_use({}) is None


def test_names_of_the_data_managers_figures(tmp_path):
    url = f"sqlite:///{tmp_path / 'd.sqlite'}"
    with DataManager.open(url=url, root=tmp_path / "data", run_id="r") as data:
        assert DATA.keys() <= DataService(data, None).figures().keys()


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ({"budget": 8000}, "4,321/8,000 rollouts"),
        ({"budget": None}, "4,321 rollouts"),
        ({"budget": None, "played_actions": 9100, "budget_actions": 12000}, "9,100/12,000 actions"),
        ({"budget": 5000, "played_actions": 9100, "budget_actions": 12000}, "4,321/5,000 rollouts"),
    ],
)
def test_lines_for_logs(tmp_path, budget, said):
    run = RunDirectory(tmp_path / "r")
    run.create()
    config = parse_config({"name": "r", "rollout": {"tasks": ["fake/click-button"]}})
    console = Console(width=80, file=io.StringIO(), force_terminal=False)
    supervisor = Supervisor(run.logs)
    supervisor.start(ProcessSpec("m", ("true",)))
    with Panel(config, run, plain=True, console=console) as panel:
        panel.set_phases([("prepare", "model", True), ("rl", "training", False)])
        panel.begin("rl")
        run.metrics("rollout").write_text(json.dumps({**ROLLOUT, **budget}) + "\n")
        run.metrics("trainer").write_text(json.dumps(TRAINER) + "\n")
        panel.refresh(supervisor)
        panel.finish("rl")
    supervisor.stop_all()
    lines = console.file.getvalue().splitlines()
    assert lines[0] == "training ..." and lines[-1] == "training: done in 0:00"
    assert lines[1] == f"  {said} · success 25 % · step 77 · 2,346 actions/min"
    assert panel.view.restarts == {"m": 0} and list(panel.view.history["mean"]) == [pytest.approx(0.25)]


def test_a_live_panel_is_drawn_on_a_terminal(tmp_path):
    run = RunDirectory(tmp_path / "r")
    run.create()
    config = parse_config({"name": "r", "rollout": {"tasks": ["fake/click-button"]}})
    console = Console(width=80, height=24, file=io.StringIO(), force_terminal=True)
    with Panel(config, run, console=console) as panel:
        panel.set_phases([("prepare", "model", False)])
        panel.begin("prepare")
        log = MetricsLog(run.metrics("progress"))
        log.write(done=1, total=4, detail="building", phase="prepare")
        log.write(done=7, total=9, detail="begun beside it", phase="supervised")
        log.close()
        panel.refresh(Supervisor(run.logs))
    assert "building" in console.file.getvalue() and (panel.view.done, panel.view.total) == (1, 4)
    assert "beside" not in console.file.getvalue()


def test_what_a_phase_waits_for_is_said_once_and_for_as_long(tmp_path):
    run = RunDirectory(tmp_path / "r")
    run.create()
    config = parse_config({"name": "r", "rollout": {"tasks": ["fake/click-button"]}})
    console = Console(width=80, file=io.StringIO(), force_terminal=False)
    log = MetricsLog(run.metrics("progress"))
    with Panel(config, run, plain=True, console=console) as panel:
        panel.set_phases([("rl", "training", False)])
        panel.begin("rl")
        for text in ("no engine answers since 14:02:11", "no engine answers since 14:02:11", ""):
            log.write(waiting=text, phase=None)
            panel.refresh(Supervisor(run.logs))
            assert panel.view.alerts == [text] * bool(text)
    log.close()
    assert console.file.getvalue().count("no engine answers since 14:02:11") == 1


def test_a_service_that_has_fallen_silent_is_said(tmp_path):
    run = RunDirectory(tmp_path / "r")
    run.create()
    config = parse_config({"name": "r", "rollout": {"tasks": ["fake/click-button"]}})
    with Panel(config, run, plain=True, console=Console(file=io.StringIO())) as panel:
        panel.set_phases([("rl", "training", False)])
        panel.begin("rl")
        for age, alerts in ((0, 0), (100, 1)):
            with run.metrics("rollout").open("a") as file:
                file.write(json.dumps({**ROLLOUT, "t": time.time() - age}) + "\n")
            panel.refresh(Supervisor(run.logs))
            assert len(panel.view.alerts) == alerts
        assert "has said nothing for 1:4" in panel.view.alerts[0] and "logs/rollout.log" in panel.view.alerts[0]
        assert "▲ the rollout service has said nothing" in "\n".join(rendered(panel.view))
