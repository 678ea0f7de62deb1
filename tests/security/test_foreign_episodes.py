"""Episodes that somebody else recorded: what they say leads to no file of the reader's, and nothing else is written."""

import os
import struct
import zlib
from dataclasses import replace

import datasets
import numpy as np
import pytest
from dart_gym_dataset_export import build_dataset

from dart_agent.episodes.episode_files import EpisodeWriter, RecordError, image_file, read_episode
from dart_agent.episodes.screenshots import decode_image
from dart_agent.episodes.trajectory import Pixels, Step, Trajectory
from dart_agent.episodes.trajectory_format import pack_trajectory, unpack_trajectory
from dart_agent.exports.osworld_results import export_osworld, export_results
from dart_agent.viewer.recorded_episodes import render_page
from dart_gym.core.outcomes import TerminalState
from dart_gym.utils.png import encode_png

pytestmark = pytest.mark.security
TASK = "suite/task"


def recorded(root):
    """The directory of an honest episode, and what it shows."""
    pixels = Pixels(np.full((30, 20, 3), 200, np.uint8))
    with EpisodeWriter(root, TASK, 0) as writer:
        begun = writer.begin(Trajectory(TASK, 0, "Do it"))
        step = writer.step(Step(text="a", actions=({"kind": "click", "x": 3, "y": 4},), pixels=pixels))
        writer.finish(replace(begun, terminal=TerminalState.DONE, score=1.0, ended_at=1.0))
    return next((root / "trajectories").iterdir()), step


def forged(directory, **changes):
    """The same episode with other words in its record."""
    (directory / "trajectory.msgpack").write_bytes(pack_trajectory(replace(read_episode(directory), **changes)))


def exports(directory, tmp_path):
    yield lambda: build_dataset([directory], tmp_path / "cache").to_list()
    yield lambda: export_results([directory], tmp_path / "results")
    yield lambda: render_page(read_episode(directory), directory)


@pytest.mark.parametrize("name", ["/etc/hostname", "../../../../etc/hostname", "\0", "a" * 31 + "/", "A" * 32])
def test_a_screenshot_that_is_no_hash_is_no_episode(name, tmp_path):
    directory, step = recorded(tmp_path / "evaluation")
    for field in ("screenshot", "screenshot_after", "image_hashes"):
        value = (name,) if field == "image_hashes" else name
        forged(directory, steps=(replace(step, **{field: value}),))
        with pytest.raises(RecordError, match="is no image's hash"):
            read_episode(directory)
        recorded(tmp_path / "evaluation")


def test_a_link_in_place_of_a_screenshot_is_not_followed_into_an_export(tmp_path):
    directory, step = recorded(tmp_path / "evaluation")
    other = tmp_path / "private.png"
    other.write_bytes(encode_png(np.zeros((30, 20, 3), np.uint8)))
    shown = image_file(directory, step.screenshot)
    for target in (other, "/etc/passwd"):
        shown.unlink()
        shown.symlink_to(target)
        for export in exports(directory, tmp_path):
            with pytest.raises(
                (RecordError, datasets.exceptions.DatasetGenerationError), match="cannot read|not the image|generat"
            ):
                export()
        assert not [path for path in (tmp_path / "results").rglob("*.png")], "nothing of the other file is there"


@pytest.mark.parametrize("target", ["/dev/zero", "fifo"])
def test_what_never_ends_is_not_read(target, tmp_path):
    directory, _ = recorded(tmp_path / "evaluation")
    record = directory / "trajectory.msgpack"
    record.unlink()
    if target == "fifo":
        os.mkfifo(record)
    else:
        record.symlink_to(target)
    with pytest.raises(RecordError, match="is no file"):
        read_episode(directory)


@pytest.mark.parametrize("field", ["app", "policy", "task_id"])
@pytest.mark.parametrize("name", ["../../../victim", "/{root}/victim", "..", "x/..", "\0"])
def test_an_export_writes_into_its_directory_alone(field, name, tmp_path):
    directory, _ = recorded(tmp_path / "evaluation")
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "kept").write_text("kept")
    forged(directory, **{field: name.format(root=tmp_path)})
    before = {path for path in tmp_path.rglob("*")}
    out = tmp_path / "results/deeper"
    export_osworld([directory], out)
    new = {path for path in tmp_path.rglob("*")} - before
    assert all(path.is_relative_to(tmp_path / "results") for path in new)
    assert (victim / "kept").read_text() == "kept"
    assert [len(path.relative_to(out).parts) for path in out.rglob("traj.jsonl")] == [
        6
    ]  # OSWorld's layout, as deep as ever


def test_a_picture_of_absurd_size_is_refused_unread():
    header = b"IHDR" + struct.pack(">IIBBBBB", 1 << 16, 1 << 16, 8, 2, 0, 0, 0)
    data = b"IDAT" + zlib.compress(b"\0" * 1000)
    chunks = (struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in (header, data, b"IEND"))
    with pytest.raises(ValueError, match="decompression bomb"):
        decode_image(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))


def test_an_honest_episode_reads_as_before(tmp_path):
    directory, _ = recorded(tmp_path / "evaluation")
    assert unpack_trajectory(pack_trajectory(read_episode(directory))) == read_episode(directory)
    for export in exports(directory, tmp_path):
        export()
