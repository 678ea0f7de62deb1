"""Spaces for screens, texts and typed actions that stay cheap at 1080p and dozens of environments.

`gymnasium.spaces.Box` of a 1080p frame costs 25 MB and 0.1 s, its batch of 16 costs 400 MB; `Text` cannot hold
Unicode. The spaces here cost bytes, and their members are what desktops give and take.
"""

import copy
import multiprocessing
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.spaces import utils
from gymnasium.vector.utils import batch_space, create_shared_memory, read_from_shared_memory, write_to_shared_memory
from gymnasium.wrappers.utils import create_zero_array
from numpy.typing import NDArray

from dart_gym.core.actions import Action, Click, Press, Scroll, Type, Wait, action_from_dict, action_to_dict, as_action

MAX_TEXT = 100_000
MAX_TREE = 16_000_000
_WORDS = ("hello", "desktop", "42", "naïve café", "中文", "a b\tc")
_CHORDS = (("enter",), ("tab",), ("esc",), ("ctrl", "a"), ("shift", "tab"))


class Screenshot(spaces.Box):
    """RGB frames, uint8 of shape (*batch, height, width, 3). Its bounds are broadcast views."""

    def __init__(
        self, height: int, width: int, batch: Sequence[int] = (), seed: int | np.random.Generator | None = None
    ) -> None:
        self.height = int(height)
        self.width = int(width)
        self.batch = tuple(int(n) for n in batch)
        shape = (*self.batch, self.height, self.width, 3)
        Space.__init__(self, shape, np.uint8, seed)
        self.low, self.high = np.broadcast_to(np.uint8(0), shape), np.broadcast_to(np.uint8(255), shape)
        self.low_repr, self.high_repr = "0", "255"
        self.bounded_below = self.bounded_above = np.broadcast_to(np.True_, shape)

    def contains(self, x: Any) -> bool:
        """Return whether it is a frame of this size."""
        return isinstance(x, np.ndarray) and x.dtype == np.uint8 and x.shape == self.shape

    def sample(self, mask: None = None, probability: None = None) -> NDArray[np.uint8]:
        """Noise."""
        return self.np_random.integers(0, 256, self.shape, dtype=np.uint8)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Screenshot) and self.shape == other.shape

    __hash__ = None  # type: ignore[assignment]  # like all spaces: compared by value, and mutable

    def __repr__(self) -> str:
        return f"Screenshot({self.height}, {self.width}{f', batch={self.batch}' if self.batch else ''})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the bounds, which a copy would write out in full, but with the generator, so that samples go on.
        return Screenshot, (self.height, self.width, self.batch), {"_np_random": self._np_random}


@batch_space.register(Screenshot)
def _batch_screenshot(space: Screenshot, n: int = 1) -> Screenshot:
    return Screenshot(space.height, space.width, (n, *space.batch), copy.deepcopy(space.np_random))


@create_zero_array.register(Screenshot)
def _black(space: Screenshot) -> NDArray[np.uint8]:  # type: ignore[misc]  # generic over a free type
    return np.zeros(space.shape, np.uint8)


class UnicodeText(Space[str]):
    """Any text up to a length."""

    def __init__(self, max_length: int = MAX_TEXT, seed: int | np.random.Generator | None = None) -> None:
        self.max_length = max_length
        self.shared_bytes = 4 + 4 * max_length  # of one text in memory that processes share
        super().__init__((), None, seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Texts are no arrays."""
        return False

    def contains(self, x: Any) -> bool:
        """Return whether it is a text that is not too long."""
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: None = None, probability: None = None) -> str:
        """A short word."""
        return _WORDS[int(self.np_random.integers(len(_WORDS)))][: self.max_length]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText) and self.max_length == other.max_length

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"UnicodeText({self.max_length})"


class SharedTexts:
    """The texts of environments in other processes, as they are when they are asked for; a deep copy is a tuple.

    Each has a row of bytes in that memory: its length as four of them, then the text in UTF-8.
    """

    def __init__(self, space: UnicodeText, memory: Any, n: int) -> None:
        self._rows = np.frombuffer(memory, np.uint8).reshape(n, space.shared_bytes)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> str:
        row = self._rows[index]
        return row[4 : 4 + int(row[:4].view(np.uint32)[0])].tobytes().decode("utf-8", "surrogatepass")

    def __setitem__(self, index: int, text: str) -> None:
        row, data = self._rows[index], np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
        row[4 : 4 + len(data)] = data
        row[:4].view(np.uint32)[0] = len(data)

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[str, ...]:
        return tuple(self[index] for index in range(len(self)))


@create_shared_memory.register(UnicodeText)
def _create_texts(space: UnicodeText, n: int = 1, ctx: Any = multiprocessing) -> Any:
    return ctx.RawArray("B", n * space.shared_bytes)


@read_from_shared_memory.register(UnicodeText)
def _read_texts(space: UnicodeText, shared_memory: Any, n: int = 1) -> SharedTexts:
    return SharedTexts(space, shared_memory, n)


@write_to_shared_memory.register(UnicodeText)
def _write_text(space: UnicodeText, index: int, value: str, shared_memory: Any) -> None:
    SharedTexts(space, shared_memory, -1)[index] = value


@create_zero_array.register(UnicodeText)
def _no_text(space: UnicodeText) -> str:  # type: ignore[misc]
    return ""


utils.flatten_space.register(UnicodeText, lambda space: space)  # it stays what it is, beside what is flattened
utils.flatten.register(UnicodeText, lambda space, x: x)
utils.unflatten.register(UnicodeText, lambda space, x: x)


class ActionSpace(Space[Action]):
    """The typed actions of `dart_gym.core.actions`, on a screen of a size in pixels.

    Members are all `Action`s and their dicts, also those that this screen cannot carry out (the observation says why
    not). Samples are clicks, scrolls, texts, chords and short waits; none ends the episode.
    """

    def __init__(self, height: int, width: int, seed: int | np.random.Generator | None = None) -> None:
        self.height, self.width = int(height), int(width)
        super().__init__(None, None, seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Actions are no arrays."""
        return False

    def contains(self, x: Any) -> bool:
        """Return whether it is an action, or the dict of one."""
        try:
            as_action(x)
        except (TypeError, ValueError):
            return False
        return True

    def sample(self, mask: None = None, probability: None = None) -> Action:
        """A random action; half of them are clicks."""
        rng = self.np_random
        x, y = int(rng.integers(self.width)), int(rng.integers(self.height))
        match int(rng.integers(8)):
            case 0:
                return Type(_WORDS[int(rng.integers(len(_WORDS)))])
            case 1:
                return Press(_CHORDS[int(rng.integers(len(_CHORDS)))])
            case 2:
                return Scroll(x, y, dy=int(rng.choice((-3, 3))))
            case 3:
                return Wait(0.01)
            case _:
                return Click(x, y)

    def to_jsonable(self, sample_n: Iterable[Action]) -> list[dict[str, Any]]:
        """Dicts of actions."""
        return [action_to_dict(action) for action in sample_n]

    def from_jsonable(self, sample_n: list[dict[str, Any]]) -> list[Action]:
        """Actions of dicts."""
        return [action_from_dict(data) for data in sample_n]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActionSpace) and (self.height, self.width) == (other.height, other.width)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ActionSpace({self.height}, {self.width})"


def observation_space(height: int, width: int, *, accessibility: bool = False) -> spaces.Dict:
    """Space of one environment's observations; with `accessibility` the tree as OSWorld's XML is part of them."""
    parts: dict[str, spaces.Space[Any]] = {
        "screenshot": Screenshot(height, width),
        "instruction": UnicodeText(),
        "action_error": UnicodeText(),
    }
    if accessibility:
        parts["accessibility_tree"] = UnicodeText(MAX_TREE)
    return spaces.Dict(parts)
