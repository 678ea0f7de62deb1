"""The page of a trajectory, opened from file:// in a real browser."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from dart_agent.commands import agent_cli
from dart_agent.engines.base.engine import Generation, Prompt
from dart_agent.episodes.episode_files import EpisodeWriter, RecordError, episode_directory, image_file, read_episode
from dart_agent.episodes.play import make_step, play
from dart_agent.episodes.screenshots import image_hash
from dart_agent.episodes.trajectory import Step, Trajectory
from dart_agent.episodes.trajectory_format import pack_trajectory
from dart_agent.evaluation.evaluation_directory import MANIFEST
from dart_agent.policies.oracle_policy import OraclePolicy
from dart_agent.policies.policy import Decision
from dart_agent.viewer.recorded_episodes import RUN, may_hold_episodes, render_page
from dart_gym.core.actions import Click, Drag, Press, Scroll, Type
from dart_gym.core.outcomes import Observation, StepResult, TerminalState
from dart_gym.sessions.session import Session
from tests.dart_gym.cluster.headless_browser import headless_page, wait_for

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><b id=owned>&amp;</b>\u2028"
PROBLEMS = """
window.problems = [];
for (const kind of ["securitypolicyviolation", "error", "unhandledrejection"])
  addEventListener(kind, event => problems.push(kind + (event.violatedDirective || event.message || event.reason)));
"""


def picture(width: int = 1280, height: int = 800) -> np.ndarray:
    """A gradient, so that a screen can be told from nothing."""
    return np.indices((height, width)).transpose(1, 2, 0)[..., [0, 1, 0]].astype(np.uint8)


def show(directory: Path) -> str:
    """The page of an episode."""
    return render_page(read_episode(directory), directory)


def write(root: Path, seed: int = 3) -> Path:
    """Three decisions: a model's hostile words with several actions, typing, and a response that is no action."""
    tokens = ["Action", ": ", HOSTILE, "\n"]
    generation = Generation(HOSTILE, (5, 6, 7, 8), (-0.01, -0.5, -3.5, float("-inf")), (3, 4), "stop", "r0", (0.1, 0.4))
    seen = Observation(picture(), HOSTILE)
    decisions = [
        Decision(
            (Click(100, 200, count=2), Drag(((10, 20), (600, 300))), Scroll(900, 500, dy=5)), HOSTILE, HOSTILE,
            prompt=Prompt((1, 2, 3)), generation=generation,
        ),
        Decision((Press(("ctrl", "s")), Type(HOSTILE)), actor="human"),
        Decision(text="?", error="no 'Action:' in it", terminal=TerminalState.PARSE_ERROR),
    ]  # fmt: skip
    with EpisodeWriter(root, "t/x", seed, policy="vlm", decode=lambda ids: tokens) as writer:
        begun = writer.begin(Trajectory("t/x", seed, HOSTILE))
        for decision in decisions:
            after = Observation(picture(), HOSTILE, "off the screen" if decision.actor == "human" else "")
            timings = {"generate": 0.5, "engine": 0.4, "perform": 0.02, "settle": 0.3, "total": 0.4}
            writer.step(make_step(seen, decision, StepResult(after), timings))
        ended = replace(begun, terminal=TerminalState.PARSE_ERROR, score=0.0, num_actions=5, timings={"generate": 1.5})
        writer.finish(replace(ended, detail=HOSTILE, evaluator="test/1"))
    return episode_directory(root, "t/x", seed)


@pytest.mark.desktop
async def test_the_page_in_a_browser(tmp_path):
    directory = write(tmp_path / "s3")
    result = CliRunner().invoke(
        agent_cli.app, ["view", str(directory), "-o", str(tmp_path / "view.html")], catch_exceptions=False
    )
    url = result.output.strip()
    assert url == (tmp_path / "view.html").as_uri()
    async with headless_page(tmp_path / "profile") as page:
        await page.call("Page.enable")
        await page.call("Page.addScriptToEvaluateOnNewDocument", source=PROBLEMS)
        await page.navigate(url)
        await wait_for(page, "document.querySelectorAll('.rail img').length === 3")
        await wait_for(page, "[...document.querySelectorAll('.rail img')].every(image => image.naturalWidth === 1280)")

        async def text(selector: str) -> str:
            return str(await page.evaluate(f"document.querySelector({json.dumps(selector)}).textContent"))

        assert await text(".instruction") == HOSTILE and await text(".terminal") == "parse error"
        assert await text(".score") == "score 0" and await text(".position") == "step 1 of 3"
        side = await text(".side")
        assert side.count(HOSTILE) == 3, "thought, text and a token"
        assert "double click (100, 200)" in side and "drag (10, 20) → (600, 300)" in side and "scroll down 5" in side
        assert "generate500 ms" in side and "of it in the engine400 ms" in side and "weights 3 to 4" in side
        marks = "[...document.querySelectorAll('.screen circle.mark:not(.halo)')].map(mark => +mark.getAttribute('cx'))"
        assert await page.evaluate(marks) == [100, 100, 10, 900]
        assert await page.evaluate("document.querySelector('.screen svg').getAttribute('viewBox')") == "0 0 1280 800"
        colors = await page.evaluate(
            "[...document.querySelectorAll('.token')].map(token => token.style.backgroundColor)"
        )
        heat = [float(color.rsplit(",", 1)[1].strip(" )")) if color else None for color in colors]
        assert heat[3] is None and heat[:3] == sorted(heat[:3]) and heat[2] > 0.5, "more surprise, more colour"
        assert "probability 3.02 %" in await page.evaluate("document.querySelectorAll('.token')[2].title")

        await page.evaluate("document.querySelector('.replay .next').click()")
        assert await text(".position") == "step 2 of 3" and "by a person" in await text(".side")
        assert "off the screen" in await text(".side")
        captions = "[...document.querySelectorAll('.caption text')].map(one => one.textContent)"
        assert (await page.evaluate(captions))[0] == "press ctrl+s"
        press = "dispatchEvent(new KeyboardEvent('keydown', {key: 'End', cancelable: true}))"
        await page.evaluate(press)
        assert await text(".position") == "step 3 of 3" and "no 'Action:' in it" in await text(".side")
        assert await page.evaluate("location.hash") == "#3"
        await page.navigate(url + "#2")
        await page.evaluate("location.reload()")
        await wait_for(page, "document.querySelector('.position')?.textContent === 'step 2 of 3'")
        assert await page.evaluate("problems") == []
        assert await page.evaluate("document.title") == "t/x · parse_error"
        assert await page.evaluate("document.getElementById('owned')") is None


async def test_an_episode_with_its_end_is_one_file(tmp_path):
    async with Session() as session:
        with EpisodeWriter(tmp_path / "e", "fake/two-steps", 1, policy="oracle") as writer:
            policy = OraclePolicy(session.oracle)
            writer.finish(await play(policy, session, "fake/two-steps", seed=1, recorder=writer))
    html = show(episode_directory(tmp_path / "e", "fake/two-steps", 1))
    assert html.count("data:image/png;base64,") == 3 and "the end" in html
    assert "http://" not in html.replace("http://www.w3.org/2000/svg", "") and "https://" not in html
    assert "src=" not in html.split("<!--", 1)[0] and "connect-src" not in html


def test_partial_episodes_missing_and_damaged_pictures(tmp_path):
    with EpisodeWriter(tmp_path, "t/x", 1) as writer:
        writer.begin(Trajectory("t/x", 1, "Do it"))
        seen, after = Observation(picture(), "Do it"), StepResult(Observation(picture(), ""))
        kept = writer.step(make_step(seen, Decision((Click(1, 2),)), after, {}))
    directory = tmp_path / "trajectories/t+x.s1.partial"
    assert '"terminal": "interrupted"' in show(directory)
    shot = image_file(directory, kept.screenshot)
    whole = shot.read_bytes()
    shot.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RecordError, match=kept.screenshot):
        show(directory)
    shot.unlink()
    assert '"image": ""' in show(directory)


def trainer_trajectory(root: Path, **changes) -> Path:
    """As the trainer's rollouts write them."""
    digest = image_hash(picture(168, 224))
    image = root / f"images/{digest[:2]}/{digest}.webp"
    image.parent.mkdir(parents=True)
    Image.fromarray(picture(168, 224)).save(image, lossless=True)
    step = Step(
        prompt_ids=(1, 2), image_hashes=(digest,), response_ids=(5, 6), logprobs=(-0.5, -1.5), version=(1, 2),
        text="Action: click", actions=({"kind": "click", "x": 3, "y": 4},), timings={"generate": 0.1}, engine="r0",
        screenshot=digest,
    )  # fmt: skip
    fields = {"run_id": "r", "group_key": "g", "terminal": TerminalState.DONE, "score": 1.0, "ended_at": 1.0}
    trajectory = Trajectory("fake/two-steps", 7, "Do it", "h", "x", steps=(step,), **fields)
    directory = root / "trajectories/x"
    directory.mkdir(parents=True)
    (directory / "trajectory.msgpack").write_bytes(pack_trajectory(replace(trajectory, **changes)))
    return directory


def test_a_trajectory_of_the_trainer(tmp_path, processing_dir, tokens):
    directory = trainer_trajectory(tmp_path)
    record = read_episode(directory)
    assert (record.task_id, record.seed, record.score) == ("fake/two-steps", 7, 1.0)
    assert record.steps[0].response_ids == (5, 6)
    assert "data:image/webp" in show(directory) and '"screen": [168, 224]' in show(directory)
    page = tmp_path / "page.html"
    command = ["view", str(directory), "--model", str(processing_dir), "--output", str(page)]
    assert CliRunner().invoke(agent_cli.app, command, catch_exceptions=False).output.strip() == page.as_uri()
    shown = json.loads(page.read_text().split('id="data">')[1].split("</script>")[0])["steps"][0]
    assert len(shown["tokens"]) == 2 and all(shown["tokens"])
    with pytest.raises(RecordError, match=r"trajectory\.msgpack"):
        show(trainer_trajectory(tmp_path / "c", terminal="gone"))


def test_one_page_is_of_one_episode(tmp_path):
    for name in ("a", "b"):
        trainer_trajectory(tmp_path / name)

    def ends(*targets: Path) -> str:
        command = ["view", *map(str, targets), "--output", str(tmp_path / "page.html")]
        result = CliRunner().invoke(agent_cli.app, command)
        return str(result.exception or result.output)

    for targets in ([tmp_path], [tmp_path / "a", tmp_path / "b"]):
        assert "there are 2: name one, such as" in ends(*targets)
    assert "no recorded episode at" in ends(tmp_path / "nowhere")
    assert not (tmp_path / "page.html").exists()
    assert ends(tmp_path / "a").strip() == (tmp_path / "page.html").as_uri(), "it holds one"


def test_what_may_get_episodes_is_shown_and_nothing_else(tmp_path):
    empty = tmp_path / "empty"
    (empty / "below").mkdir(parents=True)
    assert not may_hold_episodes(empty)
    result = CliRunner().invoke(agent_cli.app, ["view", str(empty)])
    assert "holds no recorded episode" in str(result.exception)
    for name in (RUN, MANIFEST):
        (empty / "below" / name).write_text("{}")
        assert may_hold_episodes(empty) and may_hold_episodes(empty / "below")
        (empty / "below" / name).unlink()
