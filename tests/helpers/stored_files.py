"""Where the files of a run lie in its directory, for tests that look at them or damage them."""

from __future__ import annotations

from pathlib import Path

from dart_train.data.files.trajectory_files import TrajectoryFiles, image_key, trajectory_key


def trajectory_path(files: TrajectoryFiles, trajectory_id: str) -> Path:
    """The directory of a trajectory."""
    return (files.root / trajectory_key(trajectory_id)).parent


def image_path(files: TrajectoryFiles, image_id: str) -> Path:
    """The file of an image, by its hash; the PNG's where it is not stored."""
    entry = files.find_image(image_id)
    return files.root / (entry.key if entry else image_key(image_id))
