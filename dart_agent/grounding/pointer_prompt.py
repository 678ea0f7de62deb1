"""PointerPrompt: the question that ends in <ACTOR>, and the place that a patch is. No torch.

Invariant: what a description spells is plain text: it can hold no token of the pointer.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dart_agent.engines.base.engine import Prompt, RequestRefused
from dart_agent.models.families.family_table import family_in, model_config
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import POINTER_TOKENS, ModelTokens

SETTINGS = "pointer_head.json"
"""Beside a model's files: the system message that its head was trained with."""
_QUESTION = (
    "<|im_start|>user\n<|vision_start|>{image}<|vision_end|>{description}<|im_end|>\n"
    "<|im_start|>assistant<|recipient|>os\npyautogui.click(<|pointer_start|><|pointer_pad|>"
)
# What the released models were trained with (microsoft/GUI-Actor, eval/).
_SYSTEMS = {
    "qwen2_vl": "You are a GUI agent. You are given a task and a screenshot of the screen. You need to perform a "
    "series of pyautogui actions to complete the task.",
    "qwen2_5_vl": "You are a GUI agent. Given a screenshot of the current GUI and a human instruction, your task is "
    "to locate the screen element that corresponds to the instruction. You should output a PyAutoGUI action that "
    "performs a click on the correct position. To indicate the click location, we will use some special tokens, which "
    "is used to refer to a visual patch later. For example, you can output: pyautogui.click(<your_special_token_here>)."
}  # fmt: skip


def has_head(model_dir: str | Path) -> bool:
    """Return whether a directory is a pointer model's, ours or a released one, by its small files."""
    return (Path(model_dir) / SETTINGS).is_file() or "pointer_pad_token_id" in model_config(model_dir)


@dataclass(frozen=True)
class PointerPrompt:
    """Prompt of one pointer model; `system` is its system message, "" if it has no such message."""

    tokens: ModelTokens
    vision: VisionSpec
    system: str

    @classmethod
    def load(cls, model_dir: str | Path, system: str | None = None) -> Self:
        """Load the prompt of a directory, optionally with another system message.

        Raises:
            ConfigurationError: if the directory holds no model.
        """
        if system is None:
            path = Path(model_dir) / SETTINGS
            released = _SYSTEMS.get(family_in(model_dir).model_type, "")
            system = str(json.loads(path.read_text())["system"]) if path.is_file() else released
        return cls(ModelTokens.load(model_dir, POINTER_TOKENS), VisionSpec.from_dir(model_dir), system)

    def grid(self, screenshot: NDArray[np.uint8]) -> tuple[int, int]:
        """(rows, columns) of patches to choose among. Raises `RequestRefused`."""
        try:
            _, rows, columns = self.vision.grid(screenshot)
        except ValueError as error:
            raise RequestRefused(f"an image cannot be used: {error}") from None
        return rows // self.vision.merge_size, columns // self.vision.merge_size

    def question(self, description: str, screenshot: NDArray[np.uint8]) -> tuple[int, ...]:
        """Token ids, the last of them <ACTOR>. Raises `RequestRefused`."""
        template = ("<|im_start|>system\n{system}<|im_end|>\n" if self.system else "") + _QUESTION
        texts, (rows, columns) = {"description": description, "system": self.system}, self.grid(screenshot)
        pads = [self.tokens.image_pad_id] * (rows * columns)
        return tuple(self.tokens.encode_template(template, texts, {"image": pads}))

    def prompt(self, description: str, screenshot: NDArray[np.uint8]) -> Prompt:
        """The same for an engine, which sees the image as the model does. Raises `RequestRefused`."""
        return Prompt(self.question(description, screenshot), (self.vision.resize(screenshot),))

    def place(self, patch: int, screenshot: NDArray[np.uint8]) -> tuple[int, int]:
        """The pixel of an (H, W, 3) screenshot in the middle of a patch, counted row by row. Raises ValueError."""
        (rows, columns), (height, width) = self.grid(screenshot), screenshot.shape[:2]
        if not 0 <= patch < rows * columns:
            raise ValueError(f"there is no patch {patch} among {rows}x{columns}")
        row, column = divmod(patch, columns)
        return int((column + 0.5) * width / columns), int((row + 0.5) * height / rows)
