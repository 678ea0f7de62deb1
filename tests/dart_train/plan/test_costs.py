"""What docs/guides/one_node.md says that the shipped configurations cost is what `dart-train plan` says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dart_train.commands.train_cli import app
from dart_train.config.run_config import load_config

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


def test_the_line_that_a_run_begins_with_is_the_one_that_is_shown():
    assert "2 engines on GPU 6 | 7; trainer on GPU 0-5 in 6 ranks\n" in PAGE
