"""Recorded episodes: everything is kept, and readable whatever it is and whenever the writer was killed."""

import os
import re
import signal
import struct
import subprocess
import sys
from pathlib import Path

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dart_agent.engines.base.engine import Generation, Prompt
from dart_agent.episodes.episode_files import (
    EpisodeWriter,
    RecordError,
    episode_directory,
    find_episodes,
    image_file,
    read_episode,
)
from dart_agent.episodes.play import make_step, play
from dart_agent.episodes.screenshots import decode_image
from dart_agent.episodes.trajectory import Step, Trajectory
from dart_agent.episodes.trajectory_format import episode_name, pack_trajectory, unpack_trajectory
from dart_agent.policies.oracle_policy import OraclePolicy
from dart_agent.policies.policy import Decision
from dart_gym.core.actions import Click, Type
from dart_gym.core.outcomes import Observation, StepResult, TerminalState
from dart_gym.sessions.session import Session

SCREEN = np.zeros((20, 30, 3), np.uint8)


TASK = Trajectory("t/x", 0, "Do it")


def step(text: str = "", logprobs: tuple[float, ...] = (-0.5, -1.0)) -> Step:
    observation = Observation(SCREEN, "Do it")
    generation = Generation(text, (5, 6), logprobs, (1, 2), "stop", "r0", (0.1, 0.2))
    decision = Decision((Click(1, 2), Type("ü\n")), text, "why", prompt=Prompt((1, 2, 3)), generation=generation)
    return make_step(observation, decision, StepResult(observation), {"generate": 0.5})


async def test_an_episode_and_its_record(tmp_path):
    directory = episode_directory(tmp_path, "fake/two-steps", 3)
    assert directory == tmp_path / "trajectories/fake+two-steps.s3"
    async with Session() as session:
        with EpisodeWriter(tmp_path, "fake/two-steps", 3, policy="oracle", app="fake") as writer:
            episode = await play(OraclePolicy(session.oracle), session, "fake/two-steps", seed=3, recorder=writer)
            [partial] = find_episodes(tmp_path, partial=True)
            begun = read_episode(partial)
            assert (begun.terminal, begun.lost_by) == (TerminalState.INTERRUPTED, "stop")
            assert begun.steps == episode.steps and list(find_episodes(tmp_path)) == []
            assert writer.finish(episode) == episode
    record = read_episode(directory)
    assert list(find_episodes(tmp_path)) == [directory] and record == episode
    assert (record.terminal, record.score, record.num_actions, record.app, record.policy) == (
        "done",
        1.0,
        2,
        "fake",
        "oracle",
    )
    assert record.success and record.task_hash == episode.task_hash and record.instruction == episode.instruction
    assert [one.actor for one in record.steps] == ["oracle", "oracle"]
    assert record.steps[0].screen == (168, 224)
    assert record.steps[0].screenshot_after == "" and image_file(directory, record.steps[1].screenshot_after)
    assert (directory / "trajectory.msgpack").read_bytes() == pack_trajectory(record), "as if it was written at once"


async def test_the_screenshots_of_a_record_are_what_was_seen(tmp_path):
    async with Session() as session:
        kept = await play(OraclePolicy(session.oracle), session, "fake/two-steps", seed=3)
        with EpisodeWriter(tmp_path, "fake/two-steps", 3) as writer:
            policy = OraclePolicy(session.oracle)
            writer.finish(await play(policy, session, "fake/two-steps", seed=3, recorder=writer))
    directory = episode_directory(tmp_path, "fake/two-steps", 3)
    for own, stored in zip(kept.steps, read_episode(directory).steps, strict=True):
        assert np.array_equal(own.pixels.screen, decode_image(image_file(directory, stored.screenshot).read_bytes()))
    assert np.array_equal(
        kept.steps[1].pixels.after, decode_image(image_file(directory, stored.screenshot_after).read_bytes())
    )


@settings(deadline=None, max_examples=50)
@given(st.text(st.characters(), max_size=50), st.lists(st.floats(), min_size=2, max_size=2))
def test_any_text_and_any_number_is_kept(tmp_path_factory, text, logprobs):
    root = tmp_path_factory.mktemp("episode")
    with EpisodeWriter(root, "t/x", 0, decode=lambda ids: [f"<{i}>" for i in ids]) as writer:
        writer.begin(TASK)
        writer.step(step(text, tuple(logprobs)))
    [kept] = read_episode(root / "trajectories/t+x.s0.partial").steps
    assert kept.text == text and kept.tokens == ("<5>", "<6>") and kept.response_ids == (5, 6)
    assert struct.pack("2d", *kept.logprobs) == struct.pack("2d", *logprobs), "to the last bit, infinities too"
    assert kept.actions[1]["text"] == "ü\n" and (kept.prompt_ids, kept.version) == ((1, 2, 3), (1, 2))


def test_a_surrogate_of_a_broken_model_is_kept(tmp_path):
    with EpisodeWriter(tmp_path, "t/x", 0) as writer:
        writer.begin(TASK)
        writer.step(step("\ud800 half a character"))
    assert read_episode(tmp_path / "trajectories/t+x.s0.partial").steps[0].text == "\ud800 half a character"


def test_a_policy_that_gave_up():
    observation = Observation(SCREEN, "Do it")
    decision = Decision(error="gone", terminal=TerminalState.MODEL_ERROR)
    kept = make_step(observation, decision, StepResult(observation), {})
    assert (kept.terminal, kept.error, kept.actions, kept.response_ids) == ("model_error", "gone", (), ())


def test_a_last_step_that_was_cut_off_is_left_out_and_a_damaged_one_is_an_error(tmp_path):
    with EpisodeWriter(tmp_path, "t/x", 0) as writer:
        writer.begin(TASK)
        writer.step(step("one"))
        writer.step(step("two"))
    directory = tmp_path / "trajectories/t+x.s0.partial"
    path = directory / "trajectory.msgpack"
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    assert [one.text for one in read_episode(directory).steps] == ["one"]
    path.write_bytes(whole[10:])
    with pytest.raises(RecordError, match=r"trajectory\.msgpack"):
        read_episode(directory)
    path.write_bytes(pack_trajectory(TASK)[:-1])
    assert read_episode(directory).instruction == "Do it"
    directory.rename(directory.with_name("complete"))
    with pytest.raises(RecordError, match="cut off"):
        read_episode(directory.with_name("complete"))


def test_what_is_no_record(tmp_path):
    with pytest.raises(RecordError, match="no recorded episode"):
        read_episode(tmp_path)
    begun = msgpack.packb({"format": 2, "task_id": "t/x", "seed": 0})
    for damaged in (
        b"",
        b"{",
        b"\x90",
        msgpack.packb({"format": 99}),
        msgpack.packb({"task_id": "t/x", "steps": []}),
        begun,
        pack_trajectory(TASK) + b"\xc0",
        pack_trajectory(TASK)[:-1],
        begun + msgpack.packb({"ended_at": 1.0}),
    ):
        (tmp_path / "trajectory.msgpack").write_bytes(damaged)
        with pytest.raises(RecordError, match=r"trajectory\.msgpack"):
            read_episode(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="check space"), EpisodeWriter(tmp_path / "file" / "s0", "t/x", 0):
        pass


def test_fields_of_a_newer_version_are_passed_over():
    told = {"format": 2, "task_id": "t/x", "seed": 3, "a_new_field": 1}
    parts = (told, {"text": "one", "a_new_field": 1}, {"terminal": "done", "ended_at": 1.0, "a_new_field": 1})
    assert unpack_trajectory(b"".join(map(msgpack.packb, parts))) == Trajectory(
        "t/x", 3, terminal=TerminalState.DONE, ended_at=1.0, steps=(Step(text="one"),)
    )


def test_no_task_id_leads_out_of_the_directory(tmp_path):
    for task in ("../../etc/passwd", "/etc/passwd", "a/./b", "..", "a\\b\0c"):
        assert episode_directory(tmp_path, task, 1).resolve().is_relative_to(tmp_path)
    assert episode_directory(tmp_path, "a/b c%2F", 1) != episode_directory(tmp_path, "a/b c/", 1)
    names = ("a/b", "a+b", "a=2Fb", "/a", "_/a", "__a", "_a", "a.", ".a", "x" * 300, "x" * 301, "ü", "u", "\ud800", "")
    found = {episode_name(task, seed) for task in names for seed in (1, 2)}
    assert len(found) == 2 * len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._=+-]{0,190}", name) for name in found)


@pytest.mark.process
def test_what_a_killed_process_wrote_is_readable(tmp_path):
    script = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from dart_agent.episodes.episode_files import EpisodeWriter
from tests.dart_agent.episodes.test_episode_files import TASK, step
with EpisodeWriter(Path({str(tmp_path)!r}), "t/x", 0) as writer:
    writer.begin(TASK)
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
    record = read_episode(tmp_path / "trajectories/t+x.s0.partial")
    assert record.terminal is TerminalState.INTERRUPTED and len(record.steps) >= 21
    assert [one.text for one in record.steps] == [f"step {n}" for n in range(len(record.steps))]
    assert record.instruction == "Do it"
