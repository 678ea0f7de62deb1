"""Conversation: the history of an episode -> the prompt of its next step, in Qwen's chat layout.

Invariants:
    - Earlier responses stand in the prompt by the very ids that were sampled; nothing is tokenised twice.
    - At most the newest `screenshots` images and the newest `texts` responses are kept. The first screenshot is a
      part of the first message; a later one that is dropped takes its whole message with it.
    - With `block` > 1 images and texts are dropped `block` at a time and together. Between two drops every prompt,
      with what was sampled to it, is an exact prefix of the next one, in ids and in images: the engine's prefix cache
      hits, and the trainer may lay the steps into one row.
    - Text from outside (instruction, error messages, what stands for earlier responses) is encoded as plain text and
      cannot open or close a message.
    - With a preset, messages are laid out as its publisher does: see `dart_agent.presets.preset.Layout`.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from dart_agent.engines.base.engine import BadResponse, Prompt
from dart_agent.formats import ActionFormat, get_format, ui_tars_prompts
from dart_agent.formats.grammar.reasoning import opened_by, split_reasoning
from dart_agent.formats.ui_tars_prompts import Style
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.presets import get_preset
from dart_agent.presets.preset import Layout
from dart_gym.core.errors import ConfigurationError
from dart_gym.core.section import Section, as_mistake


class ConversationConfig(Section):
    """Settings of prompts; also a run's section `agent`."""

    preset: str | None = Field(
        None,
        description="A model's published behaviour (docs/guides/presets.md): it sets style, format, history, pixels "
        "and sampling; what is given beside it counts.",
    )
    style: Style = Field(
        "ui_tars",
        description='What precedes the instruction: "ui_tars" is UI-TARS\'s with DART\'s note, "format" what the '
        'action format says of itself, "short" nothing, "preset" the prompt of the preset.',
    )
    screenshots: int = Field(5, ge=1, description="How many of the newest screenshots stand in the prompt.")
    texts: int = Field(35, ge=0, description="How many of the model's newest responses stand in the prompt.")
    block: int = Field(
        1,
        ge=0,
        description="How many screenshots are dropped at once, at most `screenshots`; with more than 1 most prompts "
        "are prefixes of the next ones, and screenshots - block + 1 to screenshots stand in the prompt. 0 is the most "
        "that keeps half of them there, such as 3 of 5, and 1 for a preset or where a block window cannot be exact.",
    )
    language: str = Field("English", description='Language of the thoughts (style "ui_tars", and some presets).')
    call_user: bool = Field(False, description='Whether call_user() is offered (style "ui_tars" only).')
    password: str = Field("password", description="What the prompt of a preset says the desktop's password is.")
    patience: int = Field(
        0,
        ge=0,
        description="How many responses in a row that cannot be read are shown to the model as an error, each for one "
        "step in which nothing is done; the next one ends the episode.",
    )
    min_pixels: int | None = Field(
        None,
        description="Fewest pixels of a screenshot for the model's processor; null is what the model directory says.",
    )
    max_pixels: int | None = Field(
        None,
        description="Most pixels of a screenshot for the model's processor; null is what the model directory says.",
    )

    @model_validator(mode="before")
    @classmethod
    def _as_the_preset(cls, values: Any) -> Any:
        """Return what a preset sets, where nothing else is said."""
        if not isinstance(values, dict) or not values.get("preset"):
            return values
        with as_mistake():
            settings = get_preset(str(values["preset"])).settings()
        return {name: value for name, value in settings.items() if name in cls.model_fields} | values

    @model_validator(mode="after")
    def _block_fits(self) -> Self:
        if self.block > self.screenshots:
            raise ValueError(f"block must be in [0, screenshots = {self.screenshots}], got {self.block}")
        if self.block > 1 and self.texts < self.screenshots - 1:
            raise ValueError(
                f"a block window keeps the response to every kept screenshot but the newest: texts must be at least "
                f"{self.screenshots - 1}, got {self.texts}"
            )
        if self.style == "preset":
            layout = get_preset(self.preset).layout if self.preset else None
            if layout is None:
                raise ValueError("style 'preset' needs the name of a preset that says how prompts are made")
            if self.block > 1 and layout.history != "anchored":
                raise ValueError(f"block must be 1: the preset {self.preset} moves its first message with the history")
        return self

    @property
    def dropped_at_once(self) -> int:
        """Return the number of screenshots that are dropped at once: `block`, or the value that 0 stands for.

        A preset keeps its publisher's window. A block window needs the response to every screenshot that it keeps.
        """
        if self.block:
            return self.block
        if self.preset or self.texts < self.screenshots - 1:
            return 1
        return (self.screenshots + 1) // 2


def style_for(action_format: ActionFormat) -> Style:
    """The prompt style of a model that was trained, or is asked, to write in a format."""
    return "ui_tars" if action_format.name == "ui_tars" else "format"


def kept(turns: int, config: ConversationConfig) -> tuple[int, int]:
    """(oldest image, oldest response) of a prompt with `turns` screenshots, as indices from 0. Pure."""
    block = config.dropped_at_once
    blocks = -(-(turns - config.screenshots) // block)
    first_image = max(0, blocks * block)
    # Texts are dropped where images are, as many as the last prompt before the next drop requires.
    last = turns if block == 1 else first_image + config.screenshots
    return first_image, max(0, last - 1 - config.texts)


_GONE = np.empty((0, 0, 3), np.uint8)


@dataclass(slots=True)
class _Turn:
    """One screenshot and, once there is one, the response to it, with the parts that later prompts repeat."""

    image: NDArray[np.uint8]
    note: str
    response: list[int] | None = None
    parts: dict[str, str] = field(default_factory=dict)


def layout_of(config: ConversationConfig, action_format: ActionFormat) -> Layout:
    """Layout of messages.

    Raises:
        ConfigurationError: a prompt of UI-TARS for another format.
    """
    if config.style == "preset":
        return get_preset(config.preset or "").layout or SHORT
    if config.style == "short":
        return SHORT
    if config.style == "format":
        return Layout(system=action_format.describe(), first=SHORT.first)
    if action_format.name != "ui_tars":
        raise ConfigurationError(
            f"the prompt style 'ui_tars' asks for UI-TARS's actions, the action format is {action_format.name!r}: "
            "take style 'format', or 'short' for a model that has learnt its format"
        )
    asked = ui_tars_prompts.ui_tars_prompt(action_format.describe(), config.language, config.call_user)
    return Layout(system=ui_tars_prompts.SYSTEM, first=asked + SHORT.first)


SHORT = Layout(first="{instruction}{image}")


class Conversation:
    """The history of one episode.

    Attributes:
        opening: what the prompt writes before every response, where that begins a thought; else "".
    """

    def __init__(
        self,
        tokens: ModelTokens,
        vision: VisionSpec,
        config: ConversationConfig | None = None,
        action_format: ActionFormat | None = None,
    ) -> None:
        """Prepare a model's prompts, by default UI-TARS 1.5's.

        Raises:
            ConfigurationError: if the preset's prompt belongs to another family.
        """
        self._tokens, self._vision = tokens, vision
        self.config = config or ConversationConfig()
        self._layout = layout_of(self.config, action_format or get_format("ui_tars"))
        self._parts = [
            (name, re.compile(found, re.DOTALL | re.MULTILINE)) for name, found in self._layout.parts.items()
        ]
        self._reply = [tokens.im_start_id, *tokens.encode(f"assistant\n{self._layout.reply}")]
        self.opening = opened_by(self._layout.reply)
        self._end = [tokens.im_end_id, *tokens.encode("\n")]
        self._texts: dict[str, str] = {}
        self._turns: list[_Turn] = []

    def begin(self, instruction: str) -> None:
        """Start an episode."""
        config = self.config
        today = date.today().strftime("%A, %B %d, %Y")
        self._texts = {
            "instruction": instruction,
            "password": config.password,
            "language": config.language,
            "date": today,
        }
        self._turns = []

    def observe(self, screenshot: NDArray[np.uint8], action_error: str = "") -> None:
        """Add a screenshot (H, W, 3) uint8; it is resized to the model's grid here, once."""
        note = f"The last action failed: {action_error}\n" if action_error else ""
        self._turns.append(_Turn(self._vision.resize(screenshot), note))

    def respond(self, response_ids: Sequence[int]) -> None:
        """Append the response to the newest screenshot, by its sampled ids.

        Raises:
            BadResponse: if it holds an id that only prompts may hold.
        """
        if not self._turns or self._turns[-1].response is not None:
            raise RuntimeError("a response needs a screenshot that it answers: call observe() first")
        ids = list(response_ids)
        if fault := self._tokens.fault_of(ids):
            raise BadResponse(fault)
        if ids and ids[-1] in self._tokens.stop_ids:
            ids.pop()
        turn = self._turns[-1]
        turn.response = ids
        text = split_reasoning(self.opening + self._tokens.decode(ids)).answer if self._parts else ""
        turn.parts = {name: match[1].strip() if (match := find.search(text)) else "" for name, find in self._parts}

    def prompt(self) -> Prompt:
        """The prompt for a response to the newest screenshot."""
        if not self._turns or self._turns[-1].response is not None:
            raise RuntimeError("a prompt needs a new screenshot: call observe() first")
        first_image, first_text = kept(len(self._turns), self.config)
        for turn in self._turns[:first_image]:
            turn.image = _GONE  # no later prompt shows it, and a long episode's screens take gigabytes
        height, width = self._turns[-1].image.shape[:2]
        start = first_text if self._layout.history == "sliding" else 0
        previous = self._filled(self._layout.line, range(start)) or self._layout.none
        texts = {**self._texts, "width": str(width), "height": str(height), "previous": previous}
        ids = self._message("system", self._layout.system, texts) if self._layout.system else []
        if self._layout.history == "latest":
            ids += self._latest(first_image, first_text, texts)
        else:
            ids += self._in_order(start, first_image, first_text, texts)
        images = tuple(turn.image for turn in self._turns[first_image:])
        return Prompt((*ids, *self._reply), images)

    def _in_order(self, start: int, first_image: int, first_text: int, texts: dict[str, str]) -> list[int]:
        """Screenshots and responses from a turn on, the instruction before them."""
        layout, ids = self._layout, []
        for index, turn in enumerate(self._turns[start:], start):
            shown, opens = index >= first_image, index == start
            if opens:
                # Without its screenshot the first message is trimmed, as the chat templates of Qwen3.5 do.
                first = layout.first if shown else layout.first.replace("{image}\n", "")
                ids += self._message("user", first, texts, turn if shown else None)
            if (shown or layout.gone is not None) if not opens else (shown and "{image}" not in layout.first):
                ids += self._message("user", layout.later, texts, turn if shown else None)
            if turn.response is not None and index >= first_text:
                ids += [*self._reply, *turn.response, *self._end]
        return ids

    def _latest(self, first_image: int, first_text: int, texts: dict[str, str]) -> list[int]:
        """Older responses as one text, newer ones as a text after their screenshot, the instruction at the end."""
        layout = self._layout
        last = len(self._turns) - 1
        ids = []
        if first_image > first_text:
            told = {"told": self._filled(layout.remembered, range(first_text, first_image))}
            ids += self._message("assistant", "{told}", told)
        for index in range(first_image, last):
            ids += self._message("user", layout.later, texts, self._turns[index])
            ids += self._message("assistant", "{told}", {"told": self._filled(layout.remembered, [index])})
        return ids + self._message("user", layout.first, texts, self._turns[last])

    def _filled(self, template: str, indices: Iterable[int]) -> str:
        """A template for each of some turns, one a line."""
        lines = []
        for index in indices:
            values = {"step": str(index + 1), **self._turns[index].parts}
            lines.append(_FIELD.sub(lambda field: values.get(field[1], field[0]), template))  # noqa: B023  # used at once
        return "\n".join(lines)

    def _message(self, role: str, template: str, texts: dict[str, str], turn: _Turn | None = None) -> list[int]:
        """A message; the screenshot of a turn and what is to be said of its action, or what stands for it."""
        tokens = self._tokens
        image: dict[str, list[int]] = {}
        if turn is not None:
            pads = [tokens.image_pad_id] * self._vision.num_tokens(turn.image)
            image["image"] = [tokens.vision_start_id, *pads, tokens.vision_end_id]
        else:
            texts = {**texts, "image": (self._layout.gone or "") if template == self._layout.later else ""}
        texts = {**texts, "note": turn.note if turn else ""}
        return [tokens.im_start_id, *tokens.encode_template(f"{role}\n{{note}}{template}", texts, image), *self._end]


_FIELD = re.compile(r"\{([a-z]+)\}")
