"""What people who watch see of each desktop: the frame that the policy saw last, the instruction, the last actions.

Invariants:
    - Nothing is captured for watchers: frames are those of step results, so an episode runs the same when watched.
    - At most one frame is encoded at a time, in a thread of its own, and once per size however many people watch.
    - A view ends when its session gives the slot back: a desktop that nobody has shows nothing.
"""

import asyncio
import io
import itertools
import secrets
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dart_gym.cluster.wire.frames import Reply, Request

WIDTHS = {"small": 480, "large": 1280}
QUALITY = {"small": 70, "large": 82}
KEPT_ACTIONS = 12
SHOWN_TEXT = 200  # characters of a text in an action
SHOWN_POINTS = 32  # of a drag


@dataclass(slots=True, eq=False)
class View:
    """What is to be seen of one desktop.

    Attributes:
        version: number of the frame, never the same twice in a server's life; 0 without one.
        jpegs: encoded frames by size, with the version that they show.
    """

    frame: NDArray[np.uint8] | None = None
    version: int = 0
    instruction: str = ""
    step: int = 0
    terminal: str = ""
    score: float | None = None
    actions: deque[tuple[int, Mapping[str, Any], str, float]] = field(
        default_factory=lambda: deque(maxlen=KEPT_ACTIONS)
    )
    jpegs: dict[str, tuple[int, bytes]] = field(default_factory=dict)


class LiveViews:
    """The live views of a server's desktops, by the names of their slots."""

    def __init__(self) -> None:
        self._views: dict[str, View] = {}
        self._versions = itertools.count(1)
        self._epoch = secrets.token_hex(4)  # so that no frame of an earlier server has the same tag
        self._encoder = ThreadPoolExecutor(1, "watch")
        self._encoding = asyncio.Lock()

    def record(self, slot: str, request: Request, reply: Reply) -> None:
        """Take note of an executed operation."""
        values = reply.result
        if reply.image is None or "step_index" not in values:
            return
        if request.op == "reset" or slot not in self._views:
            self._views[slot] = View()
        view = self._views[slot]
        view.frame, view.version = reply.image, next(self._versions)
        view.instruction, view.step = values["instruction"], values["step_index"]
        view.terminal = str(values["terminal"] or "")
        view.score = values["evaluation"][1] if values["evaluation"] else None
        if request.op == "step":
            seconds = values["timings"].get("total", 0.0)
            view.actions.append((view.step, request.args["action"], values["action_error"], seconds))

    def forget(self, slot: str) -> None:
        """Drop the view of a desktop that went back to the pool."""
        self._views.pop(slot, None)

    def describe(self, slot: str) -> dict[str, Any]:
        """A view as plain values, without the frame."""
        view = self._views.get(slot) or View()
        height, width = view.frame.shape[:2] if view.frame is not None else (0, 0)
        return {
            "frame": view.version,
            "width": width,
            "height": height,
            "instruction": view.instruction,
            "step": view.step,
            "terminal": view.terminal,
            "score": view.score,
            "actions": [
                {"step": step, "action": _shortened(action), "error": error[:SHOWN_TEXT], "seconds": round(seconds, 3)}
                for step, action, error, seconds in view.actions
            ],
        }

    def tag(self, slot: str, size: str) -> str:
        """The entity tag of a desktop's frame; "" without one."""
        view = self._views.get(slot)
        return f'"{self._epoch}-{view.version}-{size}"' if view is not None else ""

    async def jpeg(self, slot: str, size: str) -> bytes | None:
        """The last frame of a desktop, not wider than `WIDTHS[size]`; None without one."""
        async with self._encoding:
            view = self._views.get(slot)
            if view is None or view.frame is None:
                return None
            version, data = view.jpegs.get(size, (0, b""))
            if version != view.version:
                version = view.version
                loop = asyncio.get_running_loop()
                data = await loop.run_in_executor(self._encoder, encode, view.frame, WIDTHS[size], QUALITY[size])
                view.jpegs[size] = version, data
            return data

    def close(self) -> None:
        """End the thread."""
        self._encoder.shutdown(wait=False, cancel_futures=True)


def encode(frame: NDArray[np.uint8], width: int, quality: int) -> bytes:
    """A frame as JPEG, scaled down to a width if it is wider. Pure."""
    image = Image.fromarray(frame)
    if image.width > width:
        height = max(1, round(image.height * width / image.width))
        image = image.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def _shortened(action: Mapping[str, Any]) -> dict[str, Any]:
    """An action with its long texts and paths cut. Pure."""
    shown: dict[str, Any] = {}
    for key, value in action.items():
        if isinstance(value, str):
            shown[key] = value if len(value) <= SHOWN_TEXT else value[:SHOWN_TEXT] + "…"
        elif isinstance(value, (list, tuple)):
            shown[key] = list(value[:SHOWN_POINTS])
        else:
            shown[key] = value
    return shown
