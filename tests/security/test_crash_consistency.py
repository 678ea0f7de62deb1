"""A power cut at any moment: each state that it may leave is one to go on from, with all that was acknowledged."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from crash_states import crash_states, lay_out, traced, tree_of, what_is_there

from dart_agent.episodes.episode_files import read_image
from dart_agent.episodes.screenshots import image_hash
from dart_agent.episodes.trajectory import Pixels, Step, Trajectory
from dart_agent.evaluation.evaluation_directory import EvaluationDirectory, Plan
from dart_gym.core.outcomes import TerminalState
from dart_gym.tasks.setup.download_cache import DownloadCache
from dart_gym.utils import durable_files
from dart_train.core.digests import why_changed
from dart_train.data.groups import checkpoint_rows
from dart_train.data.manager.data_manager import DataManager
from dart_train.run.run_directory import RunState, write_json
from dart_train.trainer.weights import checkpoint

pytestmark = pytest.mark.security
HEADER = """
import sys
sys.path.insert(0, {here!r})
from pathlib import Path
from test_crash_consistency import *
def ack_of(root): return lambda text: print(f"ACK {{root}} {{text}}", flush=True)
"""


def picture(number: int) -> np.ndarray:
    return np.full((4, 4, 3), number, np.uint8)


def trajectory(number: int) -> tuple[Trajectory, dict[str, np.ndarray]]:
    image = picture(number)
    step = Step(screenshot=image_hash(image), image_hashes=(image_hash(image),), response_ids=(1,), logprobs=(-1.0,),
                prompt_ids=(1, 2), actions=({"kind": "wait", "seconds": 0.0},))  # fmt: skip
    values = {"task_hash": "h", "run_id": "r", "source": "policy", "group_key": f"g{number}", "ended_at": 1.0}
    made = Trajectory("t/x", number, "Do it", trajectory_id=f"t{number}", steps=(step,), **values)
    return replace(made, terminal=TerminalState.DONE, score=1.0, num_actions=1), {image_hash(image): image}


def open_data(root: Path) -> DataManager:
    return DataManager.open(url=f"sqlite:///{root}/run.db", root=root / "data", run_id="r")


# --- what is done, and what must hold of every state


def state_act(root, ack):
    for number in range(3):
        write_json(root / "deep/run/state.json", {"phases": {}, "lives": number})
        ack(number)


def state_check(root, said):
    path = root / "deep/run/state.json"
    assert not said or RunState(path).values["lives"] >= int(said[-1])
    write_json(path, {"phases": {}, "lives": 9})
    assert RunState(path).values["lives"] == 9


def token_act(root, ack):
    durable_files.make_directories(root / "tokens")
    for number in range(2):
        durable_files.write_file(root / "tokens/8765", f"token-{number}" * 5, mode=0o600)
        ack(number)


def token_check(root, said):
    path = root / "tokens/8765"
    found = path.read_text() if path.exists() else None
    allowed = [f"token-{number}" * 5 for number in range(len(said) and int(said[-1]), 2)]
    assert found in allowed or (found is None and not said)


def evaluation_act(root, ack):
    with EvaluationDirectory(root / "out", Plan("p", ("t/x",), (0, 1, 2))) as directory:
        for seed in range(2):
            record_episode(directory, seed)
            ack(seed)
        directory.write_scores({"mean": 1.0})
        ack("scores")


def record_episode(directory, seed):
    with directory.recorder(("t/x", seed)) as writer:
        begun = writer.begin(Trajectory("t/x", seed, "Do it", task_hash="h"))
        writer.step(Step(text="a", pixels=Pixels(picture(seed))))
        ended = replace(begun, terminal=TerminalState.DONE, score=1.0, ended_at=1.0)
        directory.finish(writer, ended)


def evaluation_check(root, said):
    with EvaluationDirectory(root / "out", Plan("p", ("t/x",), (0, 1, 2))) as directory:
        known = {seed for _, seed in directory.known()}
        assert {int(seed) for seed in said if seed != "scores"} <= known
        for episode in (root / "out/trajectories").glob("*.s[0-9]"):
            assert read_image(episode, image_hash(picture(int(episode.name[-1])))) is not None
        for seed in {0, 1, 2} - known:
            record_episode(directory, seed)
        assert len(directory.known()) == 3
    assert "scores" not in said or json.loads((root / "out/scores.json").read_text()) == {"mean": 1.0}


def recording_act(root, ack):
    with open_data(root) as data:
        ack("open")
        for number in range(2):
            data.record(*trajectory(number), expected=1)
            ack(f"t{number}")


def recording_check(root, said):
    with open_data(root) as data:
        rows = [found.trajectory_id for found in data.trajectories()]
        assert {name for name in said if name != "open"} <= set(rows)
        for number in range(3):  # what was not acknowledged is handed in again, and changes nothing where it was there
            data.record(*trajectory(number), expected=1)
        for number in range(3):
            made, images = trajectory(number)
            assert data.load_trajectory(made.trajectory_id).steps == made.steps
            for name, image in images.items():
                assert np.array_equal(data.load_image(name), image)


def weights_act(root, ack):
    write_source(root)
    with open_data(root) as data:
        ack("open")
        for version in range(2):
            publish(root, data, version)
            ack(version)


def write_source(root):
    durable_files.make_directories(root / "source")
    durable_files.write_file(root / "source/tokenizer.json", '{"a": 1}')


def publish(root, data, version):
    def save(path):
        (path / "model.safetensors").write_bytes(bytes([version]) * 5000)
        (path / "config.json").write_text(json.dumps({"version": version}))

    path = checkpoint.version_dir(root / "checkpoints", version)
    data.write(checkpoint_rows.announce, version, path, "training")
    checkpoint.write_version(save, path, root / "source", lease=version)
    data.publish(version, path, "training")


def weights_check(root, said):
    checkpoint.remove_incomplete(root / "checkpoints")
    with open_data(root) as data:
        newest = data.newest_checkpoint()
        asked = [int(version) for version in said if version != "open"]
        assert not asked or (newest is not None and newest.version >= asked[-1])
        for row in data.checkpoints():
            if row.completed_at is not None:
                path = root / "checkpoints" / Path(row.path).name
                assert why_changed(path) == "" and checkpoint.contained_lease(path) == row.version
                assert (path / "model.safetensors").read_bytes() == bytes([row.version]) * 5000
    if not (root / "source/tokenizer.json").exists():
        shutil.rmtree(root / "source", ignore_errors=True)
        write_source(root)
    with open_data(root) as data:
        version = data.read(checkpoint_rows.next_version)
        publish(root, data, version)
        assert data.newest_checkpoint().version == version


def training_act(root, ack):
    durable_files.make_directories(root / "trainer")
    for step in (1, 2):
        save_state(root, step)
        ack(step)


def save_state(root, step):
    directory = root / f"trainer/checkpoint-{step}"
    checkpoint.mark_incomplete(directory)
    (directory / "deep").mkdir(parents=True, exist_ok=True)
    (directory / "optimizer.pt").write_bytes(bytes([step]) * 3000)
    (directory / "deep/rng.pth").write_bytes(bytes([step]) * 20)
    checkpoint.mark_complete(checkpoint.ResumePoint(directory, step=step, version=0, unpublished=0))


def training_check(root, said):
    point = checkpoint.resume_point(root / "trainer")
    assert not said or (point is not None and point.step >= int(said[-1]))
    if point is not None:
        assert (point.path / "optimizer.pt").read_bytes() == bytes([point.step]) * 3000
    checkpoint.remove_incomplete(root / "trainer")
    assert checkpoint.resume_point(root / "trainer") == point
    save_state(root, 3)
    assert checkpoint.resume_point(root / "trainer").step == 3


def downloads_act(root, ack):
    cache = DownloadCache(root / "cache")
    for number in range(2):
        (root.parent / "given").write_bytes(bytes([number]) * 3000)
        cache.add(f"http://x/{number}", root.parent / "given")
        ack(number)


def downloads_check(root, said):
    cache = DownloadCache(root / "cache")
    for number in range(2):
        found = cache.find(f"http://x/{number}")
        assert found is not None or str(number) not in said
        assert found is None or found.read_bytes() == bytes([number]) * 3000
    (root.parent / "given").write_bytes(b"new")
    assert cache.add("http://x/9", root.parent / "given").read_bytes() == b"new"


WRITES = {
    "state": (state_act, state_check),
    "token": (token_act, token_check),
    "evaluation": (evaluation_act, evaluation_check),
    "recording": (recording_act, recording_check),
    "weights": (weights_act, weights_check),
    "training": (training_act, training_check),
    "downloads": (downloads_act, downloads_check),
}
LEAST_STATES = 10


def renames_act(root, ack):
    """As such files were written before: without a sync."""
    (root / "new").write_text("whole")
    (root / "new").rename(root / "file")
    ack("written")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Name -> directory and history of each of `WRITES`, and of renames."""
    base = tmp_path_factory.mktemp("written")
    roots = {name: base / name / "root" for name in (*WRITES, "renames")}
    for root in roots.values():
        root.mkdir(parents=True)
    script = HEADER.format(here=str(Path(__file__).parent))
    script += "".join(f"{name}_act(Path({str(root)!r}), ack_of({str(root)!r}))\n" for name, root in roots.items())
    histories = traced(script, [*roots.values()], base / "strace")
    return dict(zip(roots, zip(roots.values(), histories, strict=True), strict=True))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", WRITES)
def test_every_state_that_a_power_cut_may_leave_is_one_to_go_on_from(name, tmp_path, written):
    root, history = written[name]
    everything = [value for kind, value in history.events if kind == "effect"]
    assert tree_of(history, everything) == what_is_there(root), "the trace has all that was done"
    whole = root.rename(tmp_path / "done")
    count = 0
    for tree, said in crash_states(history, "open" if name in ("recording", "weights") else ""):
        root.mkdir()
        lay_out(tree, root)
        try:
            WRITES[name][1](root, said)
        except Exception as error:
            shutil.copytree(root, tmp_path / "state", symlinks=True)
            raise AssertionError(f"after {said}, with {sorted(tree)}: {type(error).__name__}: {error}") from error
        shutil.rmtree(root)
        count += 1
    assert count >= LEAST_STATES and whole.exists()
    print(f"{name}: {count} states, all of them good")


def test_a_rename_without_a_sync_is_found_out(written):
    states = [tree for tree, said in crash_states(written["renames"][1]) if said]
    assert {} in states and {"file": b""} in states and {"file": b"whole"} in states
