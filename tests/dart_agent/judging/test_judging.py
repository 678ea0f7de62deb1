"""Judges beside evaluators: how far they agree, and what nonsense and a constant yes look like."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from dart_agent.commands import agent_cli
from dart_agent.episodes.episode_files import EpisodeWriter
from dart_agent.episodes.trajectory import Pixels, Step, Trajectory
from dart_agent.judging.agreement import agreement
from dart_agent.judging.checkpoints import Checkpoints
from dart_agent.judging.judge import Judgement, Screens, judge_digest, make_judge
from dart_agent.judging.model_judge import judge_prompt, read_verdict
from dart_agent.judging.program_judge import read_output
from dart_gym.core.errors import ConfigurationError
from dart_gym.core.outcomes import TerminalState

# --- agreement ----------------------------------------------------------------------------------------------------


def test_the_numbers_of_a_known_table():
    """Cohen's own way of counting: 20 yes-yes, 5 yes-no, 10 no-yes, 15 no-no are a kappa of 0.4."""
    pairs = [(1.0, 1.0)] * 20 + [(1.0, 0.0)] * 5 + [(0.0, 1.0)] * 10 + [(0.0, 0.0)] * 15
    found = agreement(pairs)
    assert found.kappa == pytest.approx(0.4) and found.kappa_low < 0.4 < found.kappa_high
    assert (found.accuracy.value, found.false_successes.value, found.missed.value) == (0.7, 0.2, 1 / 3)
    assert found.successes.value == 0.6 and found.unreadable.value == 0.0
    assert any("kappa is 0.40" in fault for fault in found.faults)


verdicts = st.lists(st.tuples(st.sampled_from([None, 0.0, 0.3, 1.0]), st.sampled_from([0.0, 1.0])), max_size=60)


@given(verdicts)
def test_shares_are_those_of_a_count(pairs):
    found = agreement(pairs)
    read = [(value > 0.5, score > 0.5) for value, score in pairs if value is not None]
    assert found.unreadable.of == len(pairs) == found.accuracy.of
    if pairs:
        assert found.accuracy.value == sum(a == b for a, b in read) / len(pairs)  # nonsense agrees with nobody
    both = {a for a, _ in read} | {b for _, b in read}
    assert (found.kappa is None) == (len(both) < 2)
    if found.kappa is not None:
        assert -1.0 <= found.kappa_low <= found.kappa + 1e-9 and found.kappa <= found.kappa_high + 1e-9
        assert found.kappa_low < found.kappa_high  # never without width


def test_a_judge_that_always_says_yes_or_nonsense_is_seen_through():
    scores = [1.0, 0.0, 0.0, 0.0] * 15
    yes = agreement([(1.0, score) for score in scores])
    assert yes.false_successes.value == 0.75 and yes.kappa == 0.0
    assert any("calls every episode a success: it tells nothing" in fault for fault in yes.faults)
    odd = agreement([(None, score) for score in scores])
    assert odd.unreadable.value == 1.0 and odd.accuracy.value == 0.0 and odd.kappa is None
    assert any("100% of its answers are no judgement" in fault for fault in odd.faults)
    assert agreement([(score, score) for score in scores]).faults == []
    assert any("on 4 episodes only" in fault for fault in agreement([(1.0, 1.0), (0.0, 0.0)] * 2).faults)


# --- answers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("The dialog is closed.\nVerdict: yes", 1.0),
        ("**Verdict:** No.", 0.0),
        ("verdict = yes ... on second thought\nVerdict: no", 0.0),
        ("Score: 0.7", 0.7),
        ("Score: 7", None),
        ("Score: 0.7.1 or so", None),
        ("I cannot help with that.", None),
        ("yes", None),
        ("", None),
    ],
)
def test_a_verdict_is_read_and_nonsense_is_none(text, value):
    assert read_verdict(text).value == value


@given(st.text())
def test_any_text_is_a_value_of_0_to_1_or_none(text):
    for judgement in (read_verdict(text), read_output(text)):
        value = judgement.checked(0).value
        assert value is None or 0.0 <= value <= 1.0


@pytest.mark.parametrize(
    ("output", "value", "steps"),
    [
        ("loading\n0.5\n", 0.5, ()),
        ('{"value": 1, "steps": [0, 0.25]}', 1.0, (0.0, 0.25)),
        ('{"value": "much"}', None, ()),
        ("NaN", None, ()),
        ("7", None, ()),
        ("true", None, ()),
        ("", None, ()),
    ],
)
def test_a_programs_output(output, value, steps):
    found = read_output(output).checked(2)
    assert (found.value, found.steps) == (value, steps)


def episode(score: float = 0.0, steps: int = 2, **values) -> Trajectory:
    made = tuple(Step(text=f"Action: wait({place})", **values) for place in range(steps))
    return Trajectory("fake/t", 1, "Click {braces} 100%", terminal=TerminalState.DONE, score=score, steps=made)


def program(code: str) -> dict:
    return {"command": [sys.executable, "-c", code]}


async def test_a_program_judges_without_the_score():
    code = "import json,sys; e=json.load(sys.stdin); print(0.25 * len(e['steps']) if 'score' not in e else 'cheat')"
    judge = make_judge("program", program(code))
    assert (await judge.judge(episode(1.0), Screens(()))).value == 0.5
    for broken, words in (("import sys; sys.exit('no')", "ended with status 1: no"), ("while 1: pass", "did not end")):
        judge = make_judge("program", program(broken) | {"timeout_s": 0.5})
        with pytest.raises(Exception, match=words):
            await judge.judge(episode(), Screens(()))


async def test_checkpoints_are_the_evaluators():
    steps = episode(steps=3).steps
    done = replace(
        episode(), steps=tuple(replace(s, progress=p) for s, p in zip(steps, (0.25, 0.25, 1.0), strict=True))
    )
    assert await Checkpoints().judge(done, Screens(())) == Judgement(1.0, (0.25, 0.0, 0.75))
    assert (await Checkpoints().judge(episode(), Screens(()))).value is None


def test_what_a_model_is_asked(tokens, vision):
    screens = Screens([lambda shade=shade: np.full((56, 84, 3), shade, np.uint8) for shade in range(4)])
    prompt = judge_prompt(episode(steps=60), screens, "Be strict. {x}", 3, tokens, vision)
    text = tokens.decode(prompt.token_ids)
    assert [int(image[0, 0, 0]) for image in prompt.images] == [1, 2, 3]
    assert "Be strict. {x}" in text and "Click {braces} 100%" in text and "(10 actions before)" in text
    assert prompt.token_ids.count(tokens.image_pad_id) == 3 * vision.num_tokens(prompt.images[0])


def test_options_are_checked_and_a_judge_has_a_digest():
    with pytest.raises(ConfigurationError, match="options.rubrik: unknown key; did you mean 'rubric'"):
        make_judge("model", {"url": "http://127.0.0.1/v1", "model": "m", "rubrik": "x"})
    with pytest.raises(ConfigurationError, match="unknown reward 'modell'"):
        make_judge("modell", {})
    first = judge_digest("program", program("1"))
    assert first == judge_digest("program", program("1") | {"timeout_s": 30.0}) != judge_digest("program", program("2"))


# --- the command --------------------------------------------------------------------------------------------------


@pytest.fixture
def evaluation(tmp_path: Path) -> Path:
    """40 recorded episodes of which every fourth succeeded; the last screen is bright where it did."""
    for seed in range(40):
        score = float(seed % 4 == 0)
        with EpisodeWriter(tmp_path / "eval", "fake/click", seed) as writer:
            begun = writer.begin(Trajectory("fake/click", seed, "Click OK"))
            screen = np.full((28, 28, 3), seed, np.uint8)
            after = np.full((28, 28, 3), 255 if score else 0, np.uint8)
            step = writer.step(Step(text="Action: wait()", pixels=Pixels(screen=screen, after=after)))
            writer.finish(replace(begun, terminal=TerminalState.DONE, score=score, steps=(step,), ended_at=1.0))
    return tmp_path / "eval"


class Bright:
    """Judges by the last screen, as the evaluator did."""

    async def start(self) -> None:
        """Nothing."""

    async def judge(self, episode: Trajectory, screens: Screens) -> Judgement:
        assert len(screens) == 2 and screens[0].max() == episode.seed
        return Judgement(float(screens[-1].mean() > 128))

    async def close(self) -> None:
        """Nothing."""


def judged(*arguments: str) -> tuple[str, dict]:
    found = CliRunner().invoke(agent_cli.app, ["judge", *arguments], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.output, json.loads(Path(arguments[-1]).read_text())


def test_the_command_says_how_far_a_judge_agrees(evaluation, tmp_path):
    said, rows = judged(str(evaluation), "--judge", f"{__name__}:Bright", "--json", str(tmp_path / "a.json"))
    assert rows["kappa"] == 1.0 and rows["faults"] == [] and len(rows["rows"]) == 40
    assert "agrees with the evaluators: 100.0% (95 %: 91.2% to 100.0%, n = 40)" in said and "do not train" not in said


def test_the_command_shows_a_constant_yes_and_nonsense(evaluation, tmp_path):
    place = str(tmp_path / "b.json")
    for code, fault in (("print(1)", "calls every episode a success"), ("print('maybe?')", "are no judgement")):
        option = f"command={json.dumps([sys.executable, '-c', code])}"
        said, rows = judged(str(evaluation), "--judge", "program", "--option", option, "--json", place)
        assert any(fault in one for one in rows["faults"]) and f"{fault}" in said
        assert "do not train with it as it is" in said
    assert "an answer that is no judgement: 'maybe?'" in said


@contextlib.asynccontextmanager
async def answering(text: str, asked: list[dict]) -> AsyncIterator[str]:
    """A server of chat completions that always says the same."""

    async def answer(request: web.Request) -> web.Response:
        asked.append(await request.json())
        return web.json_response({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


async def test_a_model_behind_chat_completions_judges():
    asked: list[dict] = []
    async with answering("It shows OK.\nVerdict: yes", asked) as url:
        judge = make_judge("model", {"url": url, "model": "m", "rubric": "Be strict."})
        await judge.start()
        try:
            screens = Screens([lambda: np.zeros((56, 84, 3), np.uint8)])
            found = await asyncio.wait_for(judge.judge(episode(), screens), 20)
        finally:
            await judge.close()
    assert found == Judgement(1.0, (), "It shows OK.\nVerdict: yes")
    (message,) = asked[0]["messages"]
    assert "Be strict." in message["content"][0]["text"] and message["content"][1]["type"] == "image_url"
