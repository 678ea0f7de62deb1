"""Recorded episodes as chat JSONL for supervised fine-tuning: one row per episode.

    chat          metadata.jsonl beside images/<hash>.png; `datasets.load_dataset(DIRECTORY)` reads both
    chat-inline   train.jsonl alone, whose images are data URLs

A row holds `messages` (the instruction and the first screenshot, then each response and the next screenshot), its
`images` in the order of the messages, `actions` (per response, as JSON), and what the episode was: `task_id`, `seed`,
`source`, `policy`, `score`, `terminal`.

Invariants:
    - A response is what the model wrote. Where a person or an oracle acted, it is written as UI-TARS would.
    - Decisions that were errors, or whose screenshot was not recorded, have no message. Decisions without a message,
      and episodes that are lost or equal to an earlier one, are counted as left out.
    - Rows are written one at a time, into a directory that did not exist or was empty.
"""

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

from dart_agent.episodes.episode_files import RecordError, read_episode, read_image
from dart_agent.episodes.trajectory import Step, Trajectory
from dart_agent.exports.fresh_directories import fresh_directory
from dart_agent.formats import InexpressibleError, get_format
from dart_gym.core.actions import action_from_dict
from dart_gym.utils.png import encode_png

METADATA = "metadata.jsonl"
INLINE = "train.jsonl"
IMAGES = "images"
FORMAT = "ui_tars"
"""In which actions are written that no model wrote."""


def export_chat(episodes: Iterable[str | Path], out: str | Path) -> str:
    """The exporter "chat"."""
    return _export(map(Path, episodes), Path(out), inline=False)


def export_chat_inline(episodes: Iterable[str | Path], out: str | Path) -> str:
    """The exporter "chat-inline"."""
    return _export(map(Path, episodes), Path(out), inline=True)


def _export(episodes: Iterable[Path], out: Path, *, inline: bool) -> str:
    """Write rows, and say how many and what was left out.

    Raises:
        RecordError: if there is not a single row, which leaves no directory.
    """
    left_out: Counter[str] = Counter()
    damaged: list[str] = []
    rows, seen = 0, set[bytes]()
    with fresh_directory(out) as place, (place / (INLINE if inline else METADATA)).open("w", encoding="utf-8") as file:
        for path in episodes:
            try:
                record = read_episode(path)
                row, shown = chat_row(record, left_out)
                key = hashlib.blake2b(json.dumps([row["messages"], shown]).encode(), digest_size=16).digest()
                if record.lost_by:
                    left_out["lost episodes"] += 1
                elif not shown:
                    left_out["episodes without a response to a screenshot"] += 1
                elif key in seen:
                    left_out["equal episodes"] += 1
                else:
                    images = [_png(path, name) for name in shown]  # only of what is written
                    _write(file, row, images, None if inline else place, shown)
                    seen.add(key)
                    rows += 1
            except RecordError as error:
                damaged.append(str(error))
        said = [f"{rows} conversations", *(f"{count} {what} left out" for what, count in sorted(left_out.items()))]
        if damaged:
            said.append(f"{len(damaged)} damaged episodes left out ({damaged[0]})")
        if not rows:
            raise RecordError(f"nothing to export: {'; '.join(said)}")
    return "; ".join(said)


def chat_row(record: Trajectory, left_out: Counter[str]) -> tuple[dict[str, Any], list[str]]:
    """Return a row without its images, and their hashes in order.

    Args:
        record: an episode with its steps.
        left_out: counts the decisions that have no message.
    """
    messages: list[dict[str, Any]] = []
    actions: list[str] = []
    shown: list[str] = []
    for step in record.steps:
        response = "" if step.error or not step.screenshot else response_of(step)
        if not response:
            why = "that were errors" if step.error else "without a screenshot or a response"
            left_out[f"decisions {why}"] += 1
            continue
        said = [] if messages else [{"type": "text", "text": _plain(record.instruction)}]
        messages.append({"role": "user", "content": [*said, {"type": "image"}]})
        messages.append({"role": "assistant", "content": [{"type": "text", "text": _plain(response)}]})
        actions.append(json.dumps(step.actions))
        shown.append(step.screenshot)
    row: dict[str, Any] = {"messages": messages, "actions": actions, "task_id": record.task_id, "seed": record.seed}
    row |= {"app": record.app, "source": record.source, "policy": record.policy, "score": record.score}
    row["terminal"] = record.terminal
    return row, shown


def response_of(step: Step) -> str:
    """Return what the model wrote, or the actions of a person or an oracle in words; "" where there is neither."""
    if step.text:
        return step.text
    if not step.actions or min(step.screen) <= 0:
        return ""
    actions = tuple(action_from_dict(action) for action in step.actions)
    try:
        return get_format(FORMAT).format(actions, step.screen, step.thought)
    except InexpressibleError:
        return ""


def _write(file: TextIO, row: dict[str, Any], images: list[bytes], place: Path | None, names: list[str]) -> None:
    """Write a row, with its images beside it below `place`, or in it."""
    if place is None:
        row["images"] = ["data:image/png;base64," + base64.b64encode(image).decode() for image in images]
    else:
        (place / IMAGES).mkdir(exist_ok=True)
        row["images_file_names"] = [f"{IMAGES}/{name}.png" for name in names]  # the column `images`, once it is read
        for name, image in zip(names, images, strict=True):
            (place / IMAGES / f"{name}.png").write_bytes(image)
    file.write(json.dumps(row) + "\n")


def _png(directory: Path, image_id: str) -> bytes:
    image = read_image(directory, image_id)
    if image is None:
        raise RecordError(f"{directory} shows the screenshot {image_id}, which is missing")
    return image.data if image.is_png else encode_png(image.pixels)


def _plain(text: str) -> str:
    """A text that UTF-8 can hold: half characters of a broken model become question marks."""
    return text.encode("utf-8", "replace").decode()
