"""Conversation: the history of an episode -> the prompt of its next step, in Qwen's chat layout.

Invariants:
    - Earlier responses stand in the prompt by the very ids that were sampled; nothing is tokenised twice.
    - At most the newest `screenshots` images and the newest `texts` responses are kept. The first screenshot is a
      part of the first message; a later one that is dropped takes its whole message with it.
    - With `block` > 1 images and texts are dropped `block` at a time and together. Between two drops every prompt,
      with what was sampled to it, is an exact prefix of the next one, in ids and in images: the engine's prefix cache
      hits, and the trainer may lay the steps into one row.
    - Text from outside (instruction, error messages) is encoded as plain text and cannot open or close a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from dart_agent.engines.base.engine import BadResponse, Prompt
from dart_agent.formats import ActionFormat, get_format, ui_tars_prompts
from dart_agent.formats.ui_tars_prompts import Style
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_gym.core.errors import ConfigurationError
from dart_gym.core.section import Section


class ConversationConfig(Section):
    """How prompts are made. A run's `agent` section is one, too."""

    style: Style = Field(
        "ui_tars",
        description='What precedes the instruction: "ui_tars" is the prompt of UI-TARS, to the letter, "format" what '
        'the action format says of itself, "short" nothing.',
    )
    screenshots: int = Field(5, ge=1, description="How many of the newest screenshots stand in the prompt.")
    texts: int = Field(35, ge=0, description="How many of the model's newest responses stand in the prompt.")
    block: int = Field(
        1,
        ge=1,
        description="How many screenshots are dropped at once, at most `screenshots`; with more than 1 most prompts "
        "are prefixes of the next ones, and screenshots - block + 1 to screenshots stand in the prompt.",
    )
    language: str = Field("English", description='Language of the thoughts (style "ui_tars" only).')
    call_user: bool = Field(False, description='Whether call_user() is offered (style "ui_tars" only).')
    report_errors: bool = Field(
        True, description="Whether the next prompt says why the last action could not be carried out."
    )

    @model_validator(mode="after")
    def _block_fits(self) -> Self:
        if self.block > self.screenshots:
            raise ValueError(f"block must be in [1, screenshots = {self.screenshots}], got {self.block}")
        if self.block > 1 and self.texts < self.screenshots - 1:
            raise ValueError(
                f"a block window keeps the response to every kept screenshot but the newest: texts must be at least "
                f"{self.screenshots - 1}, got {self.texts}"
            )
        return self


def style_for(action_format: ActionFormat) -> Style:
    """The prompt style of a model that was trained, or is asked, to write in a format."""
    return "ui_tars" if action_format.name == "ui_tars" else "format"


def kept(turns: int, config: ConversationConfig) -> tuple[int, int]:
    """Which turns a prompt shows when there are `turns` screenshots. Pure.

    Returns:
        (index of the oldest image, index of the oldest response), at least 0.
    """
    blocks = -(-(turns - config.screenshots) // config.block)
    first_image = max(0, blocks * config.block)
    # Texts are dropped where images are, as many as the last prompt before the next drop requires.
    last = turns if config.block == 1 else first_image + config.screenshots
    return first_image, max(0, last - 1 - config.texts)


@dataclass(slots=True)
class _Turn:
    """One screenshot and, once it is made, the response to it."""

    image: NDArray[np.uint8]
    note: list[int]
    response: list[int] | None = None


class Conversation:
    """The history of one episode."""

    def __init__(
        self,
        tokens: ModelTokens,
        vision: VisionSpec,
        config: ConversationConfig | None = None,
        action_format: ActionFormat | None = None,
    ) -> None:
        """Prepare the fixed parts of the prompts of one model, for UI-TARS's format of version 1.5 by default.

        Raises:
            ConfigurationError: a prompt of UI-TARS for another format.
        """
        self._tokens, self._vision = tokens, vision
        self.config = config or ConversationConfig()
        self._newline = tokens.encode("\n")
        self._user = [tokens.im_start_id, *tokens.encode("user\n")]
        self._assistant = [tokens.im_start_id, *tokens.encode("assistant\n")]
        self._end = [tokens.im_end_id, *self._newline]
        self._opening = self._opened(action_format or get_format("ui_tars"))
        self._instruction: list[int] = []
        self._turns: list[_Turn] = []

    def _opened(self, action_format: ActionFormat) -> list[int]:
        """All that stands before the instruction."""
        tokens, config = self._tokens, self.config
        if config.style == "short":
            return list(self._user)
        system, user = ui_tars_prompts.SYSTEM, ""
        if config.style == "format":
            system = action_format.describe()
        elif action_format.name != "ui_tars":
            raise ConfigurationError(
                f"the prompt style 'ui_tars' asks for UI-TARS's actions, the action format is {action_format.name!r}: "
                "take style 'format', or 'short' for a model that has learnt its format"
            )
        else:
            user = ui_tars_prompts.ui_tars_prompt(action_format.describe(), config.language, config.call_user)
        opening = [tokens.im_start_id, *tokens.encode("system\n"), *tokens.encode_markup(system), *self._end]
        return [*opening, *self._user, *tokens.encode_markup(user)]

    def begin(self, instruction: str) -> None:
        """Start an episode."""
        self._instruction = self._tokens.encode(instruction)
        self._turns = []

    def observe(self, screenshot: NDArray[np.uint8], action_error: str = "") -> None:
        """Add a screenshot (H, W, 3) uint8; it is resized to the model's grid here, once."""
        note: list[int] = []
        if action_error and self.config.report_errors:
            note = self._tokens.encode(f"The last action failed: {action_error}\n")
        self._turns.append(_Turn(self._vision.resize(screenshot), note))

    def respond(self, response_ids: Sequence[int]) -> None:
        """Add the response to the newest screenshot, by its sampled ids.

        Raises:
            BadResponse: it holds an id that may stand in prompts only, such as an image pad.
        """
        if not self._turns or self._turns[-1].response is not None:
            raise RuntimeError("a response needs a screenshot that it answers: call observe() first")
        ids = list(response_ids)
        if fault := self._tokens.fault_of(ids):
            raise BadResponse(fault)
        if ids and ids[-1] in self._tokens.stop_ids:
            ids.pop()
        self._turns[-1].response = ids

    def prompt(self) -> Prompt:
        """The prompt for a response to the newest screenshot."""
        if not self._turns or self._turns[-1].response is not None:
            raise RuntimeError("a prompt needs a new screenshot: call observe() first")
        first_image, first_text = kept(len(self._turns), self.config)
        ids, images = [*self._opening, *self._instruction], []
        for index, turn in enumerate(self._turns):
            if index >= first_image:
                ids += self._screenshot(turn, opened=index == 0)
                images.append(turn.image)
            elif index == 0:
                ids += self._end
            if turn.response is not None and index >= first_text:
                ids += [*self._assistant, *turn.response, *self._end]
        return Prompt((*ids, *self._assistant), tuple(images))

    def _screenshot(self, turn: _Turn, *, opened: bool) -> list[int]:
        """A user message with an image, or the rest of the first one."""
        tokens = self._tokens
        pads = [tokens.image_pad_id] * self._vision.num_tokens(turn.image)
        image = [tokens.vision_start_id, *pads, tokens.vision_end_id]
        return [*([] if opened else self._user), *turn.note, *image, *self._end]
