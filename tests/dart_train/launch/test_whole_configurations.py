"""Every file of `configs/` runs to its second update, is stopped there, and is resumed: in minutes, on any machine."""

from __future__ import annotations

import json

import pytest
from whole_runs import CONFIGS, RUNNABLE, ConfiguredRun, FakedMachine

from dart_train.config.resume_changes import recorded
from dart_train.config.run_config import load_config
from dart_train.processes.process_context import open_data
from tests.helpers.object_store import s3_bucket

NAMES = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
TO_THE_END = ("dart_osworld_7b",)
"""Those that are resumed to their report; the others to their next update."""
MORE = {"dart_osworld_7b": {"evaluation.monitor.every_rollouts": 4, "evaluation.monitor.episodes": 1}}
"""Parts that a configuration has switched off and that users switch on."""

PLACES = {
    "dart_osworld_7b": ({"2", "3", "4"}, set()),
    "lora_7b_80gb": ({"0"}, {"0 0.55"}),
    "lora_3b_24gb": ({"0"}, {"0 0.49"}),
}
"""GPUs of the engines, the monitor's among them; GPU and share of its memory of a trainer that shares one."""

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.train, pytest.mark.timeout(2000)]


@pytest.mark.parametrize("name", NAMES)
def test_a_configuration_is_run_stopped_and_resumed(name, tmp_path, request):
    loaded = load_config(CONFIGS / f"{name}.yaml")
    changes = dict(MORE.get(name, {}))
    if loaded.data.files:
        changes["data.files"] = request.getfixturevalue("bucket") + "/runs"
    machine = FakedMachine(tmp_path, 8)
    configured = ConfiguredRun(name, machine, changes)
    configured.until_updates(configured.begin(), 2)
    before = configured.steps
    assert before == list(range(1, len(before) + 1))
    if name in TO_THE_END:  # to the end: one more lease, the test after, the report
        configured.until_the_end(configured.begin(trainer__max_steps=before[-1] + loaded.trainer.mini_batches))
        assert json.loads(configured.run.figures.read_text())["rollouts"] >= 8
    else:
        configured.until_updates(configured.begin(trainer__max_grad_norm=1.25), configured.updates + 1)
    after = configured.steps
    assert after[: len(before)] == before and after == list(range(1, len(after) + 1)) and len(after) > len(before)
    assert json.loads((configured.run.root / "state.json").read_text())["lives"] == 2
    assert len(recorded(configured.run.changes)) == 1, "it went on with another setting, and said so"
    if "osworld/*" in loaded.train_tasks:
        with open_data(load_config(configured.run.config), configured.run) as data:
            assert {one.task_id for one in data.trajectories(source="rollout")} <= RUNNABLE
        assert "4 of 6" in configured.log.read_text(), "those that cannot run are counted and named"
    if name in PLACES:
        engines, trainers = PLACES[name]
        assert {server["CUDA_VISIBLE_DEVICES"] for server in machine.servers} == engines
        assert machine.shares == trainers


@pytest.fixture
def bucket():
    with s3_bucket() as url:
        yield url
