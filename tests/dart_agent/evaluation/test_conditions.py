"""What decides a score: written by evaluations, looked at before two are compared, shown beside published numbers."""

import json
import shutil
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dart_agent.commands import agent_cli
from dart_agent.episodes.episode_files import find_episodes, read_episode
from dart_agent.evaluation import conditions
from dart_agent.evaluation.conditions import PROTOCOLS, Protocol, differences, protocol_named
from dart_agent.evaluation.evaluation_directory import MANIFEST
from dart_agent.presets import get_preset
from dart_gym.core.errors import ConfigurationError


def command(*arguments: str):
    return CliRunner().invoke(agent_cli.app, list(arguments), catch_exceptions=True)


def evaluated(out: Path, *more: str) -> Path:
    found = command("eval", "fake/two-steps", "--policy", "oracle", "--n", "1", "--out", str(out), *more)
    assert found.exit_code == 0, found.output + repr(found.exception)
    return out


@pytest.fixture(scope="module")
def alike(tmp_path_factory) -> list[Path]:
    """Two evaluations that were played alike."""
    root = tmp_path_factory.mktemp("alike")
    return [evaluated(root / name) for name in ("a", "b")]


@pytest.mark.thorough
def test_an_evaluation_writes_what_decided_its_score(alike):
    found = conditions.conditions(alike[0])
    assert found["policy"] == "oracle" and found["pacing"] is None and found["protocol"] is None
    assert found["software"]["dart-gui"]
    assert found["screen"].keys() == found["evaluator"].keys() == found["task_hash"].keys() == {"fake/two-steps"}
    assert all(found[name]["fake/two-steps"] for name in ("screen", "evaluator", "task_hash"))
    assert json.loads((alike[0] / "scores.json").read_text())["settings"]["software"] == found["software"]


@pytest.mark.thorough
def test_what_was_played_alike_is_compared(alike):
    found = command("compare", *map(str, alike))
    assert found.exit_code == 0 and "differs" not in found.output


@pytest.mark.thorough
def test_another_step_limit_or_pacing_is_refused_and_named(alike, tmp_path):
    other = evaluated(tmp_path / "other", "--max-steps", "9", "--pacing", "step-pause")
    refused = command("compare", str(alike[0]), str(other))
    assert isinstance(refused.exception, ConfigurationError)
    assert "max_steps: not set, 9" in str(refused.exception) and "pacing: not set, step-pause" in str(refused.exception)
    named = command("compare", str(alike[0]), str(other), "--anyway")
    assert named.exit_code == 0 and "differs: max_steps: not set, 9" in named.output


def test_environments_refuse_and_policies_are_named():
    base = {"pacing": None, "max_steps": 5, "model": "m", "screen": {"t": "800x600"}, "evaluator": {"t": "e 1"}}
    assert differences(base, base) == ([], [])
    assert differences(base, {**base, "model": "n"}) == ([], ["model: m, n"])
    assert differences(base, {**base, "screen": {"t": "1x1", "u": "2x2"}}) == (["screen: t: 800x600, t: 1x1"], [])
    assert differences(base, {**base, "evaluator": {"t": "e 2"}}) == (["evaluator: t: e 1, t: e 2"], [])
    assert differences(base, {**base, "screen": {"u": "1x1"}}) == ([], []), "no task in common"
    assert differences(base, {**base, "preset_hash": "x"}) == ([], ["preset_hash: not set, x"])


@pytest.mark.thorough
def test_other_software_does_not_go_on_in_the_same_directory(tmp_path, monkeypatch):
    out = evaluated(tmp_path / "out")
    monkeypatch.setattr(conditions, "version", lambda package: "0.0.1")
    found = command("eval", "fake/two-steps", "--policy", "oracle", "--n", "1", "--out", str(out))
    assert isinstance(found.exception, ConfigurationError) and "software" in str(found.exception)


@pytest.mark.thorough
def test_a_protocol_sets_pacing_steps_and_screen(tmp_path, monkeypatch):
    """As OSWorld-Verified does, but without its minute after a reset, and on another screen than the task's."""
    verified = PROTOCOLS["osworld-verified"]
    assert (verified.pacing, verified.max_steps, verified.screen) == ("osworld", 50, (1920, 1080))
    monkeypatch.setitem(PROTOCOLS, "quick", Protocol("settle", 7, (640, 400), "this test"))
    found = conditions.conditions(evaluated(tmp_path / "out", "--protocol", "quick"))
    assert (found["pacing"], found["max_steps"], found["protocol"]) == ("settle", 7, "quick")
    assert found["screen"] == {"fake/two-steps": "640x400"}


@pytest.mark.desktop
@pytest.mark.slow
def test_osworld_verified_is_played_through_on_a_real_desktop(tmp_path):
    """With its minute after a reset, its two seconds after every action, and its screen, whatever the task's is."""
    out, verified = tmp_path / "out", PROTOCOLS["osworld-verified"]
    began = time.monotonic()
    found = command(
        *("eval", "dialogs/save-text", "--policy", "oracle", "--n", "1", "--parallel", "1"),
        *("--protocol", "osworld-verified", "--out", str(out)),
    )
    took = time.monotonic() - began
    assert found.exit_code == 0, found.output + repr(found.exception)
    (path,) = find_episodes(out)
    episode = read_episode(path)
    assert episode.success and len(episode.steps) >= 4
    assert {step.screen for step in episode.steps} == {verified.screen}
    pauses = 60.0 + 2.0 * (len(episode.steps) - 1)
    assert took > episode.timings["reset"] + episode.timings["step"] > pauses
    said = conditions.conditions(out)
    assert (said["protocol"], said["pacing"], said["max_steps"]) == ("osworld-verified", "osworld", 50)
    assert said["screen"] == {"dialogs/save-text": "1920x1080"}
    other = evaluated(tmp_path / "other", "--max-steps", "15")
    refused = command("compare", str(out), str(other))
    assert isinstance(refused.exception, ConfigurationError) and "pacing: osworld" in str(refused.exception)


def test_a_protocol_is_not_half_of_one():
    with pytest.raises(ConfigurationError, match="did you mean 'osworld-verified'"):
        protocol_named("osworld-verifed", None, None)
    with pytest.raises(ConfigurationError, match="sets --pacing and --max-steps: leave one"):
        protocol_named("osworld-verified", "settle", 15)


def test_a_page_puts_the_published_number_beside_ours_with_what_differs(alike, tmp_path):
    preset = get_preset("evocua-s2")
    manifest = json.loads((alike[0] / MANIFEST).read_text())
    for hash_, changed in ((preset.digest, False), ("another", True)):
        settings = {**manifest["settings"], "preset": preset.name, "preset_hash": hash_, "texts": 2, "model": "<b>"}
        root = tmp_path / hash_
        shutil.copytree(alike[0], root)
        (root / MANIFEST).write_text(json.dumps({**manifest, "settings": settings}))
        assert command("compare", str(root), "--published").exit_code == 0
        page = (root / "published.html").read_text()
        assert (
            "<td>EvoCUA-32B</td><td>56.7</td><td>OSWorld-Verified, 50 steps; meituan/EvoCUA@4a0ad5f README.md" in page
        )
        assert "<td>100.0</td><td>1 episodes, 0 lost</td>" in page
        assert "texts: 2 here, 4 in the preset" in page and "tasks: 1 here" in page and "top_p: 0.9 there" in page
        assert ("the preset has changed" in page) == changed
        assert "1920x1080 there" in page and "<b>" not in page
    without = command("compare", str(alike[0]), "--published")
    assert isinstance(without.exception, ConfigurationError)
