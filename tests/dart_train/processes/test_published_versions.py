"""A version whose files were cut off stops no run: the one before it is used, and that is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from dart_train.core.train_errors import CheckpointError
from dart_train.data.groups.checkpoint_rows import CheckpointRow
from dart_train.data.store.schema import CheckpointStatus
from dart_train.processes import process_context
from dart_train.processes.process_context import published


class Versions:
    """Published versions, newest first."""

    def __init__(self, root: Path, *whole: bool) -> None:
        self.rows = []
        for version, sound in enumerate(whole):
            path = root / f"v{version}"
            path.mkdir()
            (path / "config.json").write_text("{}")
            if sound:
                (path / "model.safetensors").write_bytes(b"x")
            self.rows.insert(0, CheckpointRow(version, str(path), CheckpointStatus.COMPLETED, "", 0.0, 1.0))

    def completed_checkpoints(self) -> list[CheckpointRow]:
        return self.rows

    checkpoints = completed_checkpoints

    def localized(self, row: CheckpointRow) -> CheckpointRow:
        return row


@pytest.mark.parametrize(
    ("whole", "used"), [((True, True), 1), ((True, False), 0), ((True, True, False, False), 1), ((True,), 0)]
)
def test_the_newest_version_that_is_whole_is_used(tmp_path, caplog, whole, used):
    assert published(Versions(tmp_path, *whole)).version == used
    assert len(caplog.messages) == (0 if used == len(whole) - 1 else len(whole) - used)


def test_a_version_that_is_asked_for_by_its_number_is_that_one_or_an_error(tmp_path):
    versions = Versions(tmp_path, True, False)
    assert published(versions, 0).version == 0
    with pytest.raises(CheckpointError, match="safetensors"):
        published(versions, 1)
    with pytest.raises(CheckpointError, match="version 7"):
        published(versions, 7)


def test_without_any_that_is_whole_the_newest_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="v1"):
        published(Versions(tmp_path, False, False))
    with pytest.raises(CheckpointError, match="no weights are published"):
        published(Versions(tmp_path / "v0"))


def test_a_version_that_was_cut_off_behind_its_digest_is_found(tmp_path, monkeypatch):
    versions = Versions(tmp_path, True, True)
    monkeypatch.setattr(process_context, "why_changed", lambda path: "it was cut" if path.name == "v1" else "")
    assert published(versions).version == 0
