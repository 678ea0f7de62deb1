"""A plan says what a run takes by cause, refuses what cannot fit with the arithmetic, and needs nothing loaded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dart_train.commands.train_cli import app
from dart_train.config.run_config import ConfigError, load_config
from dart_train.plan import plan_machine
from dart_train.plan.plan_machine import model_size, refuse_what_cannot_fit
from dart_train.plan.run_plan import Assumed, Machine, plan, refusals

ROOT = Path(__file__).parents[3]
PAPER = ROOT / "configs" / "dart_osworld_7b.yaml"
GPUS = Machine(gpus=8, gpu_bytes=80 * 10**9, flops=989e12)
ENGINES = ("rollout.engine.kind=vllm", "rollout.engine.options={}")
SEVEN = model_size("", "7b")


def planned(*overrides: str, machine: Machine = GPUS, assumed: Assumed = Assumed()):
    return plan(load_config(PAPER, list(overrides)), SEVEN, machine, assumed)


def test_bytes_of_a_rank_are_those_of_the_arithmetic():
    """8.29 billion numbers: 4 bytes as weights, 4 as gradients, 8 as moments, 4 as the reference."""
    whole = planned("trainer.fsdp=false").rank.held
    numbers = SEVEN.total
    assert numbers == pytest.approx(8.29e9, rel=1e-3)
    assert whole == {
        "weights": 4 * numbers, "gradients": 4 * numbers, "optimizer": 8 * numbers, "reference": 4 * numbers,
    }  # fmt: skip
    shared = planned("trainer.fsdp=true").rank.held
    assert shared["optimizer"] == 8 * (SEVEN.language // 8 + SEVEN.tower)
    adapter = planned("trainer.fsdp=true", "trainer.use_peft=true").rank.held
    assert adapter["reference"] == 0 and adapter["optimizer"] == 8 * (SEVEN.adapter(16) // 8)


def test_what_cannot_fit_is_refused_with_the_arithmetic_and_what_to_change():
    (said,) = planned("trainer.fsdp=false").refusals
    for words in ("8 ranks holds 154.5 GiB", "there are 74.5 GiB", "optimizer 61.8 GiB", "set fsdp: true"):
        assert words in said
    assert planned("trainer.fsdp=true").refusals == ()
    engines = (*ENGINES, "rollout.engine.replicas=8")
    (said,) = refusals(load_config(PAPER, ["trainer.fsdp=true", *engines]), SEVEN, GPUS)
    assert said == "engines take 8 of 8 GPUs, which leaves none for the trainer"


def test_engines_hold_as_many_requests_as_their_memory_has_room_for():
    engines = (
        "rollout.engine.kind=vllm",
        "rollout.engine.options={}",
        "rollout.engine.replicas=4",
        "trainer.fsdp=true",
    )
    found = planned(*engines)
    assert found.ranks == 4 and found.engine.weights == 2 * SEVEN.total
    assert found.engine.token == 2 * 2 * 28 * 512  # keys and values of 28 layers in bfloat16
    room = int(0.9 * 80e9) - found.engine.weights
    assert found.engine.requests == room // (found.engine.token * found.engine.request) > 1
    few = planned(*engines, "rollout.workers=1000")
    assert any("rollout.workers is 1000" in change for change in few.changes)


def test_who_waits_follows_from_the_times():
    slow, fast = Assumed(step_s=0.5), Assumed(step_s=200.0)
    assert "rollouts wait" in planned(assumed=slow).waits and "the trainer waits" in planned(assumed=fast).waits
    assert "not known" in planned(machine=replace(GPUS, flops=None)).waits
    seconds = planned("trainer.top_entropy_quantile=1.0", "trainer.old_logprobs=behaviour").seconds
    assert "scoring" not in seconds and seconds["forward and backward"] > seconds["reference"]


@pytest.mark.parametrize("name", ["dart_osworld_7b", "quickstart", "efficiency"])
def test_the_command_plans_every_configuration_as_it_is(name, tmp_path):
    path = tmp_path / "plan.json"
    here = ["--model", "7b", "--gpus", "8", "--gpu-memory", "80", "--gpu", "H100"] if "7b" in name else []
    arguments = [
        "plan",
        str(ROOT / "configs" / f"{name}.yaml"),
        *here,
        "--set",
        "trainer.fsdp=true",
        "--json",
        str(path),
    ]
    result = CliRunner().invoke(app, arguments)
    found = json.loads(path.read_text())
    fits = not found["refusals"] and found["rank_peak_bytes"] <= found["room_bytes"]
    assert result.exit_code == (0 if fits else 1), result.output
    assert found["rank_bytes"]["weights"] > 0 and found["disk_bytes_per_hour"] and "training ranks" in result.output


def test_a_model_that_is_not_here_and_no_size_is_one_message():
    with pytest.raises(ConfigError, match="no model /nowhere on this machine; to plan without it name its size"):
        model_size("/nowhere")
    with pytest.raises(ConfigError, match="published sizes are 3b, 7b"):
        model_size("", "70b")


def test_a_run_that_cannot_fit_is_refused_before_it_begins(monkeypatch, tmp_path):
    assets = ROOT / "dart_train" / "assets" / "tiny_base"
    config = load_config(ROOT / "configs" / "quickstart.yaml", [f"model.path={assets}"])
    refuse_what_cannot_fit(config)
    monkeypatch.setattr(plan_machine, "this_machine", lambda: Machine(host_bytes=1 << 20))
    with pytest.raises(ConfigError, match="this run does not fit: each of 1 ranks holds .* before the first token"):
        refuse_what_cannot_fit(config)
