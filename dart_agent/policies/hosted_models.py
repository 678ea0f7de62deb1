"""What the policies of hosted models share: the image that is sent, the key, and what an error of the API means.

Invariants:
    - A key is read from its environment variable when the policy is made, given to the SDK, and kept nowhere else.
    - What a person must mend (no key, a wrong one, an unknown model) is a `ConfigurationError`; what may be over in a
      minute (rate limits, time-outs, a server's fault) ends the episode as MODEL_ERROR after the SDK's own retries.
    - Nothing here is trained on: hosted models give no token ids, so decisions have no prompt and no generation.
"""

import base64
import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dart_agent.formats.grammar.action_format import ParsedResponse
from dart_agent.models.coordinates import CoordinateSpace
from dart_agent.policies.policy import Decision
from dart_gym.core.errors import ConfigurationError, MissingDependencyError
from dart_gym.core.outcomes import TerminalState
from dart_gym.utils.png import encode_png

MAX_IMAGE = (1280, 800)
"""Models of these APIs click most precisely on images no larger than this; coordinates are scaled back."""
TIMEOUT_S = 180.0
RETRIES = 4
LEFT_OUT = "(an earlier screenshot, left out)"


@dataclass(frozen=True, slots=True)
class Provider:
    """A vendor's API, as far as its policies are alike."""

    name: str
    module: str
    key_variable: str

    def sdk(self) -> Any:
        """The SDK's module. Raises `MissingDependencyError`: it is not installed."""
        try:
            return importlib.import_module(self.module)
        except ImportError as error:
            raise MissingDependencyError(
                f'the policy "{self.module}" needs the package {self.module}: pip install "dart-gui[apis]"'
            ) from error

    def key(self) -> str:
        """The key. Raises `ConfigurationError`: the variable is not set."""
        key = os.environ.get(self.key_variable, "").strip()
        if not key:
            raise ConfigurationError(
                f"{self.name} needs a key: set the environment variable {self.key_variable} "
                "(no option takes it, so that no log or record has it)"
            )
        return key

    def failed(self, sdk: Any, error: Exception, model: str) -> Decision:
        """What an error of the SDK means for the episode. Raises `ConfigurationError`: a person must mend something."""
        if isinstance(error, (sdk.AuthenticationError, sdk.PermissionDeniedError)):
            raise ConfigurationError(
                f"{self.name} refused the key in {self.key_variable} (HTTP status {error.status_code}): "
                "check the key and what it is allowed to do"
            ) from error
        if isinstance(error, sdk.NotFoundError):
            raise ConfigurationError(f"{self.name} knows no model {model!r}: choose another --model") from error
        status = getattr(error, "status_code", None)
        said = f"{type(error).__name__}" + (f", HTTP status {status}" if status else "")
        return Decision(
            error=f"{self.name} gave no answer ({said}: {str(error)[:300]})", terminal=TerminalState.MODEL_ERROR
        )


ANTHROPIC = Provider("Anthropic", "anthropic", "ANTHROPIC_API_KEY")
OPENAI = Provider("OpenAI", "openai", "OPENAI_API_KEY")


@dataclass(frozen=True, slots=True)
class SentImage:
    """A screenshot as it is sent: base64 of the PNG, and how coordinates on it relate to the screen."""

    png: str
    space: CoordinateSpace


def fit_image(screenshot: NDArray[np.uint8], limit: tuple[int, int] = MAX_IMAGE) -> SentImage:
    """Scale an (H, W, 3) screenshot into (width, height) pixels, keeping its shape; smaller ones stay as they are."""
    height, width = screenshot.shape[:2]
    scale = min(1.0, limit[0] / width, limit[1] / height)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    image = Image.fromarray(screenshot)
    if size != image.size:
        image = image.resize(size, Image.Resampling.LANCZOS)
    return SentImage(base64.b64encode(encode_png(np.asarray(image))).decode(), CoordinateSpace((width, height), size))


def decide(response: ParsedResponse, text: str) -> Decision:
    """The decision of a parsed response."""
    if response.errors:
        return Decision(text=text, thought=response.thought, error=response.problem, terminal=TerminalState.PARSE_ERROR)
    return Decision(response.actions, text, response.thought)


def drop_images(messages: Sequence[dict[str, Any]], keep: int) -> None:
    """Replace all but the newest `keep` images of a conversation (blocks of type "image"), in place, by a word."""
    places = [
        (blocks, index)
        for message in messages
        for blocks in _block_lists(message["content"])
        for index, block in enumerate(blocks)
        if isinstance(block, dict) and block.get("type") == "image"
    ]
    for blocks, index in places[: max(0, len(places) - keep)]:
        blocks[index] = {"type": "text", "text": LEFT_OUT}


def _block_lists(content: Any) -> list[list[Any]]:
    """The lists of blocks in a message: its content, and that of its tool results."""
    if not isinstance(content, list):
        return []
    inner = [
        block["content"] for block in content if isinstance(block, dict) and isinstance(block.get("content"), list)
    ]
    return [content, *inner]


def connect(provider: Provider, base_url: str | None = None, *, retries: int = RETRIES) -> Any:
    """The SDK's asynchronous client. Raises `ConfigurationError`: no key; `MissingDependencyError`: no SDK."""
    sdk = provider.sdk()
    make = sdk.AsyncAnthropic if provider is ANTHROPIC else sdk.AsyncOpenAI
    return make(api_key=provider.key(), base_url=base_url, timeout=TIMEOUT_S, max_retries=retries)
