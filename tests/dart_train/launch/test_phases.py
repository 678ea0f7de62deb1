"""The list of phases: the pipeline's own in their order, and those that packages add before the report."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from dart_gym.core.errors import ConfigurationError
from dart_train.commands.train_cli import app
from dart_train.config.run_config import ConfigError, load_config
from dart_train.core.train_errors import DartTrainError
from dart_train.launch.pipeline import phases_of
from tests.helpers.packages import install

CONFIG = Path("configs/quickstart.yaml")
CODE = """
from dart_train.config.added_phases import AddedPhase

class Weigh(AddedPhase):
    times: int = 1
    title = property(lambda self: f"weighed {self.times} times")

    def main(self, context):
        (context.run.root / "weighed").write_text(str(self.times))
"""


@pytest.fixture
def weigh(tmp_path, monkeypatch):
    install(tmp_path, "scales", {"dart_gui.phases": {"weigh": "scales_phase:Weigh"}}, {"scales_phase": CODE})
    monkeypatch.syspath_prepend(str(tmp_path))


def test_phases_stand_in_the_order_in_which_they_run():
    names = [phase.name for phase in phases_of(load_config(CONFIG))]
    assert names[:3] == ["prepare", "demonstrate", "warmup"]
    assert names[-4:] == ["greedy_after", "constant-click", "supervised", "report"]
    few = load_config(CONFIG, ["controls={}", "evaluation.greedy=false", "warmup={}", "demonstrations.per_task=0"])
    assert [phase.name for phase in phases_of(few)] == ["prepare", "before", "rl", "after", "report"]


def test_a_package_adds_a_phase_with_options(weigh):
    config = load_config(CONFIG, ["controls={supervised: false, phases: {weigh: {times: 3}}}"])
    assert [(phase.name, phase.title) for phase in phases_of(config)][-2:] == [
        ("weigh", "weighed 3 times"),
        ("report", "report"),
    ]


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        ("{wegh: {}}", r"controls\.phases: unknown phase 'wegh'; did you mean 'weigh'"),
        ("{weigh: {tmes: 3}}", r"controls\.phases\.weigh\.tmes: unknown key; did you mean 'times'"),
        ("{'pathlib:Path': {}}", "no subclass of dart_train.config.added_phases.AddedPhase"),
    ],
)
def test_a_phase_that_cannot_be_used_is_refused(weigh, phases, message):
    with pytest.raises(ConfigError, match=message):
        load_config(CONFIG, [f"controls.phases={phases}"])


def test_a_phase_that_does_not_exist_is_refused_by_name(weigh, tmp_path):
    config = tmp_path / "mine.yaml"
    config.write_text("name: mine\nrollout: {tasks: [fake/two-steps]}\ncontrols: {phases: {weigh: {times: 3}}}\n")

    def run(phase: str) -> Result:
        return CliRunner().invoke(app, ["process", str(config), phase, "--runs-dir", str(tmp_path)])

    assert run("weigh").exit_code == 0 and (tmp_path / "mine" / "weighed").read_text() == "3"
    for wrong, near in (("wegh", "weigh"), ("warm-up", "warmup")):
        with pytest.raises(ConfigurationError, match=f"the phase {wrong!r}.*did you mean {near!r}"):
            raise run(wrong).exception
    with pytest.raises(DartTrainError, match="for as long as the reinforcement learning took"):
        raise run("supervised").exception
