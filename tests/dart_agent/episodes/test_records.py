"""Recorded episodes: everything is kept, and readable whatever it is and whenever the writer was killed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dart_agent.engines.base.engine import Generation, Prompt
from dart_agent.episodes.play import PlayedStep, play_episode
from dart_agent.episodes.records import (
    CUT_OFF,
    EpisodeWriter,
    RecordError,
    episode_directory,
    find_episodes,
    make_record,
    make_step,
    read_episode,
    read_outcome,
)
from dart_agent.policies.oracle_policy import OraclePolicy
from dart_agent.policies.policy import Decision
from dart_gym.core.actions import Click, Type
from dart_gym.core.outcomes import Observation, StepResult, TerminalState
from dart_gym.sessions.session import Session

SCREEN = np.zeros((20, 30, 3), np.uint8)


def step(text: str = "", logprobs: tuple[float, ...] = (-0.5, -1.0)) -> PlayedStep:
    observation = Observation(SCREEN, "Do it")
    generation = Generation(text, (5, 6), logprobs, (1, 2), "stop", "r0", (0.1, 0.2))
    decision = Decision((Click(1, 2), Type("ü\n")), text, "why", prompt=Prompt((1, 2, 3)), generation=generation)
    return PlayedStep(observation, decision, StepResult(observation), {"generate": 0.5})


async def test_an_episode_and_its_record(tmp_path):
    directory = episode_directory(tmp_path, "fake/two-steps", 3)
    assert directory == tmp_path / "fake/two-steps/s3"
    async with Session() as session:
        with EpisodeWriter(directory, "fake/two-steps", 3) as writer:
            policy = OraclePolicy(session.oracle)
            episode = await play_episode(session, policy, "fake/two-steps", seed=3, on_step=writer.step)
            [partial] = find_episodes(tmp_path, partial=True)
            assert read_episode(partial).terminal == CUT_OFF and list(find_episodes(tmp_path)) == []
            written = writer.finish(make_record(episode, app="fake", policy="oracle"))
    record = read_episode(directory)
    assert list(find_episodes(tmp_path)) == [directory] and written.directory == directory
    assert (record.terminal, record.score, record.steps, record.app, record.policy) == (
        "done",
        1.0,
        2,
        "fake",
        "oracle",
    )
    assert record.success and record.task_hash == episode.task_hash and record.instruction == episode.instruction
    assert [one.actor for one in record.decisions] == ["oracle", "oracle"]
    assert [one.screenshot for one in record.decisions] == ["screenshots/000.png", "screenshots/001.png"]
    assert record.decisions[0].screen == (168, 224)
    assert (directory / record.final_screenshot).exists()
    assert read_outcome(directory).decisions == ()


@settings(deadline=None, max_examples=50)
@given(st.text(st.characters(), max_size=50), st.lists(st.floats(), min_size=2, max_size=2))
def test_any_text_and_any_number_is_kept(tmp_path_factory, text, logprobs):
    directory = tmp_path_factory.mktemp("episode") / "s0"
    with EpisodeWriter(directory, "t/x", 0, lambda ids: [f"<{i}>" for i in ids]) as writer:
        writer.step(step(text, tuple(logprobs)))
    [kept] = read_episode(directory.with_name("s0.partial")).decisions
    assert kept.text == text and kept.tokens == ("<5>", "<6>") and kept.response_ids == (5, 6)
    assert kept.logprobs == tuple(value if np.isfinite(value) else None for value in logprobs)
    assert kept.actions[1]["text"] == "ü\n" and (kept.prompt_tokens, kept.version) == (3, (1, 2))


def test_a_surrogate_of_a_broken_model_is_kept(tmp_path):
    with EpisodeWriter(tmp_path / "s0", "t/x", 0) as writer:
        writer.step(step("\ud800 half a character"))
    assert read_episode(tmp_path / "s0.partial").decisions[0].text == "\ud800 half a character"


def test_a_policy_that_gave_up():
    observation = Observation(SCREEN, "Do it")
    decision = Decision(error="gone", terminal=TerminalState.MODEL_ERROR)
    kept = make_step(PlayedStep(observation, decision, StepResult(observation), {}), "x.png")
    assert (kept.terminal, kept.error, kept.actions, kept.response_ids) == ("model_error", "gone", (), ())


def test_a_last_line_that_was_cut_off_is_left_out_and_a_damaged_one_is_an_error(tmp_path):
    with EpisodeWriter(tmp_path / "s0", "t/x", 0) as writer:
        writer.step(step("one"))
        writer.step(step("two"))
    directory = tmp_path / "s0.partial"
    path = directory / "steps.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    assert [one.text for one in read_episode(directory).decisions] == ["one"]
    path.write_bytes(whole[10:])
    with pytest.raises(RecordError, match="steps.jsonl, line 1"):
        read_episode(directory)


def test_what_is_no_record(tmp_path):
    with pytest.raises(RecordError, match="no recorded episode"):
        read_outcome(tmp_path)
    for damaged in ("{", "[]", '{"format": 99}', '{"format": 1}'):
        (tmp_path / "episode.json").write_text(damaged)
        with pytest.raises(RecordError, match=r"episode\.json"):
            read_outcome(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="check space"), EpisodeWriter(tmp_path / "file" / "s0", "t/x", 0):
        pass


def test_no_task_id_leads_out_of_the_directory(tmp_path):
    for task in ("../../etc/passwd", "/etc/passwd", "a/./b", "..", "a\\b\0c"):
        assert episode_directory(tmp_path, task, 1).resolve().is_relative_to(tmp_path)
    assert episode_directory(tmp_path, "a/b c%2F", 1) != episode_directory(tmp_path, "a/b c/", 1)


@pytest.mark.process
def test_what_a_killed_process_wrote_is_readable(tmp_path):
    script = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from dart_agent.episodes.records import EpisodeWriter
from tests.dart_agent.episodes.test_records import step
with EpisodeWriter(Path({str(tmp_path / "s0")!r}), "t/x", 0) as writer:
    for n in range(10**6):
        writer.step(step(f"step {{n}}"))
        print(n, flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= 20:
            os.kill(process.pid, signal.SIGKILL)
            break
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    record = read_episode(tmp_path / "s0.partial")
    assert record.terminal == CUT_OFF and len(record.decisions) >= 21
    assert [one.text for one in record.decisions] == [f"step {n}" for n in range(len(record.decisions))]
    assert json.loads((tmp_path / "s0.partial/episode.json").read_text())["instruction"] == "Do it"
