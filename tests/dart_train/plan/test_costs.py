"""What docs/guides/one_node.md says that the shipped configurations cost is what `dart-train plan` says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dart_train.commands.train_cli import app
from dart_train.config.run_config import load_config
from dart_train.plan.run_plan import Machine, plan
from dart_train.plan.step_passes import Assumed
from dart_train.trainer.memory.model_size import ModelSize

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "guides" / "one_node.md").read_text()
COLUMNS = {
    "dart_osworld_7b": "--model 7b --gpus 8 --gpu-memory 80 --gpu H100",
    "lora_7b_80gb": "--model 7b --gpus 1 --gpu-memory 80 --gpu H100",
    "lora_3b_24gb": "--model 3b --gpus 1 --gpu-memory 24 --screen 800x600 --steps 3 --step-seconds 3",
}
GIB = 2**30


def row(title: str) -> list[str]:
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {title} ")]
    return [cell.strip() for cell in line.strip("|").split("|")[1:]]


@pytest.mark.parametrize(("column", "name"), list(enumerate(COLUMNS)))
def test_the_page_has_the_figures_of_the_plan(column, name, tmp_path):
    path, peak = tmp_path / "plan.json", {"lora_3b_24gb": ["--gpu", "RTX 4090"]}.get(name, [])
    command = ["plan", str(ROOT / "configs" / f"{name}.yaml"), *COLUMNS[name].split(), *peak, "--json", str(path)]
    assert CliRunner().invoke(app, command).exit_code == 0
    found = json.loads(path.read_text())
    engine, config = found["engine"], load_config(ROOT / "configs" / f"{name}.yaml")
    assert row("memory of a rank, of what it may take")[column] == (
        f"{found['rank_peak_bytes'] / GIB:.1f} of {found['room_bytes'] / GIB:.1f} GiB"
    )
    assert row("requests at once on an engine")[column] == str(engine["requests"])
    lease = config.trainer.groups_per_step * config.rollout.group_size
    assert row("rollouts of an optimizer's lease")[column] == str(lease)
    for title, seconds in (
        ("seconds to train on it", sum(found["seconds"].values())),
        ("seconds in which the engines read its prompts", found["engines_s"]),
        ("seconds in which the desktops play it", found["rollout_s"]),
    ):
        assert row(title)[column] == f"{seconds:.0f}", title
    assert row("memory of the host, desktops left out")[column] == f"{sum(found['host_bytes'].values()) / GIB:.0f} GiB"
    assert row("disk of the first hour")[column] == f"{sum(found['disk_bytes_per_hour'].values()) / 1e9:.0f} GB"


def test_the_hours_of_the_papers_setting_follow_from_its_steps():
    config = load_config(ROOT / "configs" / "dart_osworld_7b.yaml")
    leases = config.trainer.max_steps // config.trainer.mini_batches
    hours = leases * int(row("seconds to train on it")[0]) / 3600
    (said,) = re.findall(r"(\d+) leases, .* are (\d+) hours", PAGE)
    assert said == (str(leases), f"{hours:.0f}")


SHIPPED, SLIDING, SCORING = [], ["agent.block=1"], ["trainer.recorded_entropies=false"]


@pytest.mark.parametrize(
    ("title", "changed", "columns"),
    [
        ("as shipped", SHIPPED, 2),
        ("`agent.block: 1`", SLIDING, 2),
        ("`trainer.recorded_entropies: false`", SCORING, 2),
        ("both", SLIDING + SCORING, 2),
        ("`trainer.kl_every: 4`", ["trainer.kl_every=4"], 1),
    ],
)
def test_what_makes_a_lease_cheaper_is_as_the_page_says(title, changed, columns):
    for column, name in list(enumerate(COLUMNS))[:columns]:
        machine = Machine((8, 1)[column], 80 * 10**9, 989e12)
        config = load_config(ROOT / "configs" / f"{name}.yaml", changed)
        seconds = sum(plan(config, ModelSize.published("7b"), machine, Assumed()).seconds.values())
        assert row(title)[column] == f"{seconds:.0f} s"


def test_all_weights_of_the_7b_fit_four_gpus_where_moments_and_activations_are_on_the_host():
    four = ["rollout.engine.urls=[http://engines:8000]", "resources.trainer_ranks=4"]
    moved = ["trainer.offload_optimizer=true", "trainer.offload_activations=true"]
    machine = Machine(4, 80 * 10**9, 989e12)
    found = [
        plan(load_config(ROOT / "configs" / "dart_osworld_7b.yaml", four + more), ModelSize.published("7b"), machine,
             Assumed())
        for more in ([], moved)
    ]  # fmt: skip
    before, after = (one.rank.peak / GIB for one in found)
    assert f"from {before:.1f} to {after:.1f} GiB on each of **4 GPUs" in PAGE and not found[1].refusals
    assert found[0].room is not None and after * GIB < found[0].room < before * GIB
    assert f"and {sum(found[1].seconds.values()):.0f} s a lease" in PAGE


MOVED = ["trainer.offload_optimizer=true", "trainer.offload_activations=true"]
MIXTURES = {
    "16 GPUs, all weights": ("dart_osworld_7b", 16, MOVED),
    "8 GPUs, all weights, `trainer.beta: 0`": ("dart_osworld_7b", 8, [*MOVED, "trainer.beta=0"]),
    "4 GPUs, an adapter, `trainer.fsdp: true`": (
        "lora_7b_80gb", 4, ["trainer.fsdp=true", "trainer.frozen_dtype=float32"]
    ),
    "1 GPU, an adapter, `trainer.offload_activations: true`": ("lora_7b_80gb", 1, MOVED[1:]),
}  # fmt: skip
"""Row of the page: configuration, ranks, and what else is set; engines are elsewhere."""


@pytest.mark.parametrize("title", MIXTURES)
def test_the_page_says_which_mixtures_of_experts_fit(title):
    name, ranks, changed = MIXTURES[title]
    elsewhere = ["rollout.engine.urls=[http://engines:8000]", f"resources.trainer_ranks={ranks}"]
    config, found = load_config(ROOT / "configs" / f"{name}.yaml", [*elsewhere, *changed]), []
    for model in ("qwen3-vl-30b-a3b", "qwen3.5-35b-a3b"):
        one = plan(config, ModelSize.published(model), Machine(ranks, 80 * 10**9, 989e12), Assumed())
        assert one.room is not None
        fits = one.rank.peak <= one.room
        found.append(f"{one.rank.peak / GIB:.1f} GiB, {sum(one.seconds.values()):.0f} s" if fits else "does not fit")
    assert row(title) == found


@pytest.mark.parametrize("sharing", [1, 2, 4])
def test_the_page_says_how_long_rows_may_be(sharing):
    """With four ranks to a row 64k tokens fit, with one they do not."""
    given = ["rollout.engine.urls=[http://engines:8000]", "resources.trainer_ranks=8",
             "trainer.micro_batch_tokens=65536", f"trainer.context_parallel={sharing}"]  # fmt: skip
    whole, moved = (
        plan(load_config(ROOT / "configs" / "dart_osworld_7b.yaml", given + more), ModelSize.published("7b"),
             Machine(8, 80 * 10**9, 989e12), Assumed())
        for more in ([], ["trainer.offload_activations=true"])
    )  # fmt: skip
    title = f"{sharing} rank{'s' * (sharing > 1)}"
    assert row(title) == [f"{whole.rank.peak / GIB:.1f} GiB", f"{whole.longest_row:,}", f"{moved.longest_row:,}"]
    assert whole.longest_row is not None and (whole.longest_row >= 65536) == (sharing == 4)


def test_the_line_that_a_run_begins_with_is_the_one_that_is_shown():
    assert "2 engines on GPU 6 | 7; trainer on GPU 0-5 in 6 ranks\n" in PAGE
