"""The quick start's tasks on a Ray cluster of nodes without a common directory, and on one machine: they learn alike.

Two halves in turn, each as shipped but for the number of rollouts and for what is tested beside. `--runs DIR` keeps
what they came to: one that is finished is not run again, and that of one machine goes on where it was. An hour.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dart_gym.utils.processes import die_with_parent
from tests.dart_train.nodes.cluster_of_nodes import Cluster
from tests.dart_train.nodes.separate_nodes import ROOT
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(4 * 3600)]
HALF_S = 2 * 3600.0
ROLLOUTS = 2000
"""Half of the quick start's: enough to see it learn."""

SETTINGS = (
    f"rollout.budget_rollouts={ROLLOUTS}",
    "evaluation.greedy=false",
    "evaluation.beside=[]",
    "controls.supervised=false",
    "controls.phases={}",
)


@pytest.fixture(scope="module")
def runs_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = request.config.getoption("--runs")
    return Path(given).resolve() if given else tmp_path_factory.mktemp("runs")


def report_of(run: Path) -> dict[str, float]:
    return json.loads((run / "report.json").read_text())


def on_one_machine(runs_dir: Path, settings: tuple[str, ...] = SETTINGS) -> dict[str, float]:
    """The figures of the report of the quick start as one machine runs it."""
    words = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "dart_train", "run", str(ROOT / "configs/quickstart.yaml"), *words, "--plain"]
    subprocess.run(
        [*command, "--name", "one-machine", "--runs-dir", str(runs_dir)],
        check=True, cwd=ROOT, timeout=HALF_S, preexec_fn=die_with_parent(),
    )  # fmt: skip
    return report_of(runs_dir / "one-machine")


def on_a_cluster(cluster: Cluster, kept: Path, settings: tuple[str, ...] = SETTINGS) -> dict[str, float]:
    """The same on three nodes: launcher and trainer, engines with desktops, desktops."""
    cluster.head.join(cpus=1)
    for host, cpus in ((2, 2), (3, 0)):
        cluster.network.node(host).join(cluster.head, cpus=cpus, desktops=3)
    launcher = cluster.begin(ROOT / "configs/quickstart_ray.yaml", *settings)
    try:
        wait_until(lambda: launcher.poll() is not None, HALF_S, look_s=1.0)
    finally:
        shutil.copytree(cluster.root("quickstart-ray"), kept, ignore=shutil.ignore_patterns("*.sock"))
        (kept / "run.txt").write_text(cluster.said())
    assert launcher.returncode == 0, cluster.said()[-4000:]
    return report_of(kept)


def test_it_learns_on_ray_as_on_one_machine(runs_dir, request, record_property):
    here = on_one_machine(runs_dir)
    kept = runs_dir / "on-ray"
    if (kept / "report.json").exists():
        there = report_of(kept)
    else:
        shutil.rmtree(kept, ignore_errors=True)
        there = on_a_cluster(request.getfixturevalue("cluster"), kept)
    keys = [f"success_{label}{end}" for label in ("before", "after") for end in ("", "_ci_low", "_ci_high")]
    for name, found in (("here", here), ("there", there)):
        record_property(name, {key: found[key] for key in (*keys, "rollouts", "rl_wall_s")})
        print(name, {key: found[key] for key in (*keys, "rollouts", "rl_wall_s")})
        assert ROLLOUTS - 10 <= found["rollouts"] <= ROLLOUTS
        assert found["success_before_ci_high"] < found["success_after_ci_low"]
    assert here["success_after_ci_low"] <= there["success_after_ci_high"]
    assert there["success_after_ci_low"] <= here["success_after_ci_high"]
