"""Trajectories as bytes: MessagePack maps one after the other, so that an episode can be written while it is played.

    beginning       what is played, once its first screen is there; names the version of the format
    steps           one map per decision
    end             how it ended

and the directories that hold them, of a training run and of an evaluation alike:

    trajectories/<id>/trajectory.msgpack
    images/<first two digits>/<hash>.png or .webp       each screenshot once, by the hash of its pixels, lossless

Invariants:
    - A trajectory that is packed at once and one that was written step by step are the same bytes.
    - Numbers and texts come back exactly, infinities, NaN and lone surrogates too.
    - Without its end a trajectory is not complete: only `partial=True` reads it, up to its last whole step.
    - An image is named by its hash and nothing else: no trajectory can name a file of its reader.
    - Fields that this version does not know are passed over; another version of the format is refused.
"""

import contextlib
import hashlib
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import msgpack

from dart_agent.episodes.trajectory import Step, Trajectory
from dart_gym.core.outcomes import TerminalState

FORMAT = 2
TRAJECTORIES = "trajectories"
IMAGES = "images"
TRAJECTORY_FILE = "trajectory.msgpack"
PARTIAL = ".partial"
"""Ends the name of the directory of an episode that is not complete."""

IMAGE_FORMATS = ("png", "webp")
"""In the order in which they are looked for: re-encoding stores the WebP before it removes the PNG."""

_BEGINNING = (
    "task_id", "seed", "instruction", "task_hash", "trajectory_id", "run_id", "group_key", "source", "policy", "app",
)  # fmt: skip
_TRAJECTORY_FIELDS = frozenset(field.name for field in fields(Trajectory)) - {"steps"}
_SELDOM = {"forked_from": "", "fork_step": 0, "deterministic": True}
"""Fields of the beginning that are written only where they differ from their default."""
_END_SELDOM: dict[str, Any] = {"rewards": {}, "reward": None}
"""Fields of the end that are written only where they differ from their default."""

_END = tuple(
    field.name
    for field in fields(Trajectory)
    if field.name in _TRAJECTORY_FIELDS - {*_BEGINNING, *_SELDOM, *_END_SELDOM}
)
_STEP_FIELDS = frozenset(field.name for field in fields(Step)) - {"pixels"}
_STEP_SELDOM: dict[str, Any] = {
    "routing": b"",
    "advice": "",
    "target_ids": (),
    "teacher_logprobs": (),
    "progress": None,
    "rewards": {},
    "reward": None,
}
"""Fields of a step that are written only where they differ from their default."""

_STEP = tuple(field.name for field in fields(Step) if field.name in _STEP_FIELDS - _STEP_SELDOM.keys())
_LONGEST_NAME = 150
IMAGE_ID = re.compile(r"[0-9a-f]{32}")


def pack_beginning(trajectory: Trajectory) -> bytes:
    """Return what is known of a trajectory before its first step."""
    seldom = {name: value for name in _SELDOM if (value := getattr(trajectory, name)) != _SELDOM[name]}
    return _pack({"format": FORMAT, **{name: getattr(trajectory, name) for name in _BEGINNING}, **seldom})


def pack_step(step: Step) -> bytes:
    """Return one step, without pixels."""
    seldom = {name: value for name in _STEP_SELDOM if (value := getattr(step, name)) != _STEP_SELDOM[name]}
    return _pack({**{name: getattr(step, name) for name in _STEP}, **seldom})


def pack_end(trajectory: Trajectory) -> bytes:
    """Return how a trajectory ended."""
    seldom = {name: value for name in _END_SELDOM if (value := getattr(trajectory, name)) != _END_SELDOM[name]}
    return _pack({**{name: getattr(trajectory, name) for name in _END}, **seldom})


def pack_trajectory(trajectory: Trajectory) -> bytes:
    """Return a whole trajectory."""
    return b"".join((pack_beginning(trajectory), *map(pack_step, trajectory.steps), pack_end(trajectory)))


def unpack_trajectory(data: bytes, *, partial: bool = False, with_steps: bool = True) -> Trajectory:
    """Return the trajectory of `pack_trajectory`.

    Args:
        data: all bytes.
        partial: whether the end may be missing, as where a writer was killed: what was written until then is returned,
            with the terminal state INTERRUPTED and lost by "stop".
        with_steps: False passes over the steps, which takes a hundredth of the time of a long episode's.

    Raises:
        ValueError, TypeError, KeyError, AttributeError, msgpack.UnpackException: the data is not one.
    """
    maps = _unpacked(data, partial) if with_steps else _ends(data, partial)
    beginning = next(maps, {})
    if beginning.get("format") != FORMAT:
        raise ValueError(f"it has format {beginning.get('format')!r}, this version reads {FORMAT}")
    known: dict[str, Any] = {name: value for name, value in beginning.items() if name in _TRAJECTORY_FIELDS}
    steps: list[Step] = []
    for number, values in enumerate(maps, 1):
        if "ended_at" in values:
            known.update((name, value) for name, value in values.items() if name in _TRAJECTORY_FIELDS)
            known["terminal"] = TerminalState(known["terminal"])
            if any(True for _ in maps):
                raise ValueError("it continues behind its end")
            return Trajectory(**known, steps=tuple(steps))
        if not with_steps:
            break
        try:
            steps.append(step := Step(**{name: value for name, value in values.items() if name in _STEP_FIELDS}))
            if wrong := [name for name in step.shown_images if not IMAGE_ID.fullmatch(name)]:
                raise ValueError(f"{wrong[0][:60]!r} is no image's hash")
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"step {number}: {error}") from error
    if not partial:
        raise ValueError("it has no end: it was cut off while it was written")
    return Trajectory(**known, lost_by="stop", steps=tuple(steps))


def image_key(image_id: str, image_format: str = "png") -> str:
    """Return where an image lies below the root, by its hash."""
    return f"{IMAGES}/{image_id[:2]}/{image_id}.{image_format}"


def episode_name(task_id: str, seed: int) -> str:
    """Return the name of an episode of an evaluation, a safe name of a directory. Another episode has another name."""
    safe = re.sub(r"[^A-Za-z0-9_.-]", lambda found: "+" if found[0] == "/" else _escaped(found[0]), task_id)
    if not re.match("[A-Za-z0-9]", safe):
        safe = f"_{safe}"
    if len(safe) > _LONGEST_NAME:
        safe = f"{safe[:100]}={hashlib.blake2b(task_id.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"
    return f"{safe}.s{seed}"


def _escaped(text: str) -> str:
    return "".join(f"={byte:02X}" for byte in text.encode("utf-8", "surrogatepass"))


def _pack(values: dict[str, Any]) -> bytes:
    return bytes(msgpack.packb(values, unicode_errors="surrogatepass"))


def _unpacked(data: bytes, partial: bool) -> Iterator[dict[str, Any]]:
    unpacker = msgpack.Unpacker(max_buffer_size=max(1, len(data)), use_list=False, unicode_errors="surrogatepass")
    unpacker.feed(data)
    whole = 0
    for values in unpacker:
        whole = unpacker.tell()
        yield values
    if whole != len(data) and not partial:
        raise ValueError(f"it is cut off behind byte {whole}")


def _ends(data: bytes, partial: bool) -> Iterator[dict[str, Any]]:
    """The first map and the last whole one, all between them passed over."""
    unpacker = msgpack.Unpacker(max_buffer_size=max(1, len(data)), use_list=False, unicode_errors="surrogatepass")
    unpacker.feed(data)
    yield unpacker.unpack()
    start = end = unpacker.tell()
    with contextlib.suppress(msgpack.OutOfData):
        while True:
            unpacker.skip()
            start, end = end, unpacker.tell()
    yield from _unpacked(data[start:] if not partial else data[start:end], partial)
