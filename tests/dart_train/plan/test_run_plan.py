"""A plan says what a run takes by cause, refuses what cannot fit with the arithmetic, and needs nothing loaded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dart_train.commands.train_cli import app
from dart_train.config.run_config import ConfigError, load_config
from dart_train.core.demo_models import demo_model
from dart_train.plan.plan_machine import model_size
from dart_train.plan.run_plan import Machine, plan, refusals
from dart_train.plan.step_passes import Assumed
from dart_train.preflight import machine_check
from dart_train.preflight.run_check import check_run
from dart_train.trainer.memory.rank_memory import usable_bytes

ROOT = Path(__file__).parents[3]
PAPER = ROOT / "configs" / "dart_osworld_7b.yaml"
GPUS = Machine(gpus=8, gpu_bytes=80 * 10**9, flops=989e12)
ENGINES = ("resources.engine_gpus=1", "resources.trainer_ranks=null")
ALL_TRAIN = ("rollout.engine.urls=[http://engines:8000]", "resources.trainer_ranks=8")
MACHINES = {
    "dart_osworld_7b": ("--model 7b --gpus 8 --gpu-memory 80 --gpu H100", 6),
    "lora_7b_80gb": ("--model 7b --gpus 1 --gpu-memory 80 --gpu H100", 1),
    "lora_3b_24gb": ("--model 3b --gpus 1 --gpu-memory 24 --screen 800x600 --steps 3", 1),
    "quickstart": ("", 1),
    "efficiency": ("", 1),
}
"""What each configuration is for, and how many ranks train there."""
SMALL = ("quickstart", "efficiency")
"""Those whose leases take so little that thousandths of the usual unit tell more."""
SEVEN = model_size("", "7b")


def planned(*overrides: str, machine: Machine = GPUS, assumed: Assumed = Assumed()):
    return plan(load_config(PAPER, list(overrides)), SEVEN, machine, assumed)


def test_bytes_of_a_rank_are_those_of_the_arithmetic():
    """8.29 billion numbers: 4 bytes as weights, 4 as gradients, 8 as moments, 4 as the reference."""
    whole = planned("trainer.fsdp=false", *ALL_TRAIN).rank.held
    numbers = SEVEN.total
    assert numbers == pytest.approx(8.29e9, rel=1e-3)
    assert whole == {
        "weights": 4 * numbers, "gradients": 4 * numbers, "optimizer": 8 * numbers, "reference": 4 * numbers,
    }  # fmt: skip
    shared = planned("trainer.fsdp=true", *ALL_TRAIN).rank.held
    assert shared["optimizer"] == 8 * (SEVEN.language // 8 + SEVEN.tower)
    adapter = planned("trainer.fsdp=true", "trainer.use_peft=true", *ALL_TRAIN).rank.held
    assert adapter["reference"] == 0 and adapter["optimizer"] == 8 * (SEVEN.adapter(16) // 8)


def test_ranks_that_share_rows_divide_what_tokens_keep_and_nothing_else():
    given = ("trainer.fsdp=true", "trainer.micro_batch_tokens=65536", *ALL_TRAIN)
    alone, four = planned(*given), planned(*given, "trainer.context_parallel=4")
    assert alone.rank.held == four.rank.held
    assert four.rank.passes["activations"] == pytest.approx(alone.rank.passes["activations"] / 4, rel=1e-3)
    assert four.rank.passes["gathered layers"] == alone.rank.passes["gathered layers"]
    operations = {one.name: one.flops for one in alone.passes}
    for one in four.passes:  # logits of a slice's responses may fit at a time, and are not computed again then
        assert one.flops == pytest.approx(operations[one.name], rel=2e-3)
    assert (alone.sharing, four.sharing) == (1, 4)


def test_the_longest_row_is_the_last_that_fits():
    given = ("trainer.fsdp=true", "trainer.context_parallel=2", *ALL_TRAIN)
    longest = planned(*given).longest_row
    assert longest is not None and longest % 2 == 0
    room = usable_bytes(GPUS.gpu_bytes, 8)
    for tokens, fits in ((longest, True), (longest + 2, False)):
        assert (planned(*given, f"trainer.micro_batch_tokens={tokens}").rank.peak <= room) == fits
    assert planned(*given, machine=replace(GPUS, gpu_bytes=20 * 10**9)).longest_row == 0


def test_what_cannot_fit_is_refused_with_the_arithmetic_and_what_to_change():
    (said,) = planned("trainer.fsdp=false", *ALL_TRAIN).refusals
    for words in ("8 ranks holds 154.5 GiB", "there are 74.5 GiB", "optimizer 61.8 GiB", "set fsdp: true"):
        assert words in said
    assert planned("trainer.fsdp=true", *ALL_TRAIN).refusals == ()
    (said,) = refusals(load_config(PAPER, ["rollout.engine.replicas=8"]), SEVEN, GPUS)
    assert said.startswith(
        "this run wants GPUs: 8 x 1 for engines, 6 for the trainer, 14 in all; this machine has 8 GPUs"
    )
    (said,) = planned(machine=Machine(host_bytes=64 << 30)).refusals
    assert "this machine has no GPU" in said


def test_weights_under_an_adapter_in_half_precision_take_half():
    adapter = ("trainer.fsdp=false", "trainer.use_peft=true", *ALL_TRAIN)
    whole, half = planned(*adapter), planned(*adapter, "trainer.frozen_dtype=bfloat16")
    added = 4 * SEVEN.adapter(16)
    assert half.rank.held["weights"] == (whole.rank.held["weights"] - added) // 2 + added
    assert "weights in half precision" in whole.rank.causes and "weights in half precision" not in half.rank.causes


def test_a_gpu_that_is_shared_has_room_for_a_part_of_each():
    config = ROOT / "configs" / "lora_7b_80gb.yaml"
    found = plan(load_config(config), SEVEN, replace(GPUS, gpus=1), Assumed())
    weights = 2 * SEVEN.total + 2 * 2 * SEVEN.adapter(32)  # and two adapters
    assert found.room == int((1 - 0.4 - 0.05) * 80e9) and found.engine.cache == int(0.4 * 80e9) - weights
    (said,) = plan(
        load_config(config, ["resources.engine_memory=0.2"]), SEVEN, replace(GPUS, gpus=1), Assumed()
    ).refusals
    assert "an engine's weights are 15.7 GiB" in said and "resources.engine_memory" in said


def test_engines_that_read_slower_than_ranks_train_are_waited_for():
    few = planned("rollout.engine.replicas=1", "resources.trainer_ranks=7")
    assert few.engines_s > sum(few.seconds.values()) > few.rollout_s and "wait for engines" in few.waits
    assert planned().engines_s == pytest.approx(few.engines_s / 2) and "rollouts wait" in planned().waits


def test_engines_hold_as_many_requests_as_their_memory_has_room_for():
    engines = (
        *ENGINES,
        "rollout.engine.replicas=4",
    )
    found = planned(*engines)
    assert found.ranks == 4 and found.engine.weights == 2 * SEVEN.total
    assert found.engine.token == 2 * 2 * 28 * 512  # keys and values of 28 layers in bfloat16
    room = int(0.9 * 80e9) - found.engine.weights
    assert found.engine.requests == room // (found.engine.token * found.engine.request) > 1
    few = planned(*engines, "rollout.workers=1000")
    assert any("rollout.workers is 1000" in change for change in few.changes)


def test_workers_that_no_admission_lets_play_are_named():
    """The paper's 180 can all play while four groups in ten carry a signal, which is what they do."""
    assert any("of 180 workers at most 128" in change and "256 where 40 %" in change for change in planned().changes)
    wide = planned("data.curation.max_staleness=3", "data.curation.batches_ahead=null").changes
    assert not any("workers at most" in change for change in wide), wide


def test_who_waits_follows_from_the_times():
    slow, fast = Assumed(step_s=0.5), Assumed(step_s=200.0)
    assert "rollouts wait" in planned(assumed=slow).waits and "the trainer waits" in planned(assumed=fast).waits
    assert "not known" in planned(machine=replace(GPUS, flops=None)).waits
    seconds = planned("trainer.top_entropy_quantile=1.0", "trainer.old_logprobs=behaviour").seconds
    assert not any("scoring" in name for name in seconds) and seconds["backward"] > seconds["reference"]


@pytest.mark.parametrize("name", MACHINES)
def test_the_command_plans_every_configuration_as_it_is(name, tmp_path):
    path = tmp_path / "plan.json"
    here, ranks = MACHINES[name]
    arguments = ["plan", str(ROOT / "configs" / f"{name}.yaml"), *here.split(), "--json", str(path)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(path.read_text())
    assert not found["refusals"] and found["rank_peak_bytes"] <= found["room_bytes"] and found["ranks"] == ranks
    assert found["rank_bytes"]["weights"] > 0 and found["disk_bytes_per_hour"] and "training ranks" in result.output
    assert f"10^{9 if name in SMALL else 12} operations" in result.output


def test_a_model_that_is_not_here_and_no_size_is_one_message():
    with pytest.raises(ConfigError, match="no model /nowhere on this machine; to plan without it name its size"):
        model_size("/nowhere")
    with pytest.raises(ConfigError, match="published sizes are 3b, 7b"):
        model_size("", "70b")


def test_a_run_that_cannot_fit_is_refused_before_it_begins(monkeypatch):
    assets = demo_model("tiny-base")
    config = load_config(ROOT / "configs" / "quickstart.yaml", [f"model.path={assets}"])
    assert check_run(config, ROOT / "runs").problems == ()
    monkeypatch.setattr(machine_check, "this_machine", lambda: Machine(host_bytes=1 << 20))
    said = " ".join(check_run(config, ROOT / "runs").problems)
    assert "each of 1 ranks holds" in said and "before the first token" in said


def test_the_warm_ups_memory_is_part_of_the_plan():
    """In one process 7B's weights, gradients and moments are 124 GiB; ranks of `fsdp` hold parts of them."""
    warm = ("warmup.max_steps=10", "demonstrations.per_task=1")
    assert planned(*warm).refusals == ()
    small = planned(*warm, machine=replace(GPUS, gpu_bytes=int(20e9))).refusals
    assert len(small) == 2 and small[1].startswith("each of 6 ranks of the warm-up holds") and "use_peft" in small[1]
    alone = planned(*warm, "trainer.fsdp=false").refusals
    assert len(alone) == 2 and alone[1].startswith("the warm-up is one process") and "use_peft" in alone[1]
    assert planned("warmup.max_steps=0").refusals == ()
    adapter = ("trainer.use_peft=true", "trainer.fsdp=false", "trainer.frozen_dtype=bfloat16", *ALL_TRAIN)
    assert planned("warmup.max_steps=10", "demonstrations.per_task=1", *adapter).refusals == ()


def test_disk_is_what_is_kept_at_the_same_time():
    disk = planned().disk
    assert disk["versions kept"] == 5 * 2 * SEVEN.total, "four, and the one that is being written"
    assert disk["states kept"] == 3 * 12 * SEVEN.total
    assert planned("trainer.keep_published=2").disk["versions kept"] == 3 * 2 * SEVEN.total
    alone = planned("trainer.use_peft=true", "rollout.sync.transfer=adapter", "warmup.max_steps=0")
    assert alone.disk["versions kept"] == 5 * 2 * SEVEN.adapter(16)
    merged = planned("trainer.use_peft=true", "warmup.max_steps=0")
    assert alone.engine.weights - merged.engine.weights == 2 * 2 * SEVEN.adapter(16)  # vLLM's two places
