"""What the policies of hosted models share: the image that is sent, the key, and how a turn comes to its actions.

Invariants:
    - A key is read from its environment variable when the policy is made, given to the SDK, and kept nowhere else.
    - A conversation goes on only with an answer that came whole. What of it cannot be read is told to the model, and
      nothing of that answer is carried out.
    - Nothing here is trained on: hosted models give no token ids, so decisions have no prompt and no generation.
"""

import base64
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dart_agent.models.coordinates import CoordinateSpace
from dart_agent.policies.policy import Decision, Episode
from dart_gym.core.actions import Action
from dart_gym.core.errors import ConfigurationError
from dart_gym.core.outcomes import Observation, TerminalState
from dart_gym.utils.png import encode_png
from dart_gym_hosted_models.hosted_calls import HostedCalls, Provider, Usage
from dart_gym_hosted_models.zoom import Zoom

MAX_IMAGE = (1280, 800)
"""Models of these APIs click most precisely on images no larger than this; coordinates are scaled back."""
TIMEOUT_S = 180.0
CORRECTIONS = 2
"""How often in one turn a model is told that its answer cannot be read."""
LOOKS = 8
"""How often in one turn a model may look closer at a part of the screenshot."""
LEFT_OUT = "(an earlier screenshot, left out)"

ANTHROPIC = Provider("Anthropic", "anthropic", "ANTHROPIC_API_KEY")
OPENAI = Provider("OpenAI", "openai", "OPENAI_API_KEY")
GEMINI = Provider("Google", "google.genai", "GEMINI_API_KEY")


@dataclass(frozen=True, slots=True)
class SentImage:
    """A screenshot as it is sent: base64 of the PNG, and how coordinates on it relate to the screen."""

    png: str
    space: CoordinateSpace


class HostedPolicy(ABC):
    """A `Policy` that asks an API; what its subclasses add is how that API is spoken.

    Without a `client` one is made, with the key of the environment; `calls` are shared with the other policies of a
    connection. Raises `ConfigurationError`: no key; `MissingDependencyError`: no SDK.
    """

    def __init__(
        self, provider: Provider, model: str, action_format: Any, *, client: Any = None, base_url: str | None = None,
        calls: HostedCalls | None = None, max_tokens: int = 2048,
    ) -> None:  # fmt: skip
        self._calls = calls or HostedCalls(provider)
        self._client = client or connect(provider, base_url)
        self._model, self._format, self._max_tokens = model, action_format, max_tokens
        self._instruction = ""
        self._begin()

    def reset(self, episode: Episode) -> None:
        """Forget the last episode."""
        self._instruction = episode.instruction
        self._begin()

    async def act(self, observation: Observation) -> Decision:
        """Ask for the next actions. Raises `ConfigurationError`: the key is wrong, or there is no such model."""
        image, spent = fit_image(observation.screenshot), Usage()
        shown, looks, corrections = image, 0, 0
        failed = f"The last action failed: {observation.action_error}" if observation.action_error else ""
        text = ""
        while True:
            found = await self._calls.ask(partial(self._send, shown, failed), self._usage, self._model)
            if isinstance(found, Decision):
                return _with(found, spent, text)
            answer, used = found
            spent.update(used)
            text = self._readable(answer)
            if check := self._check(answer):
                problem = f"a person is wanted to check this step ({check}): look at it, or set acknowledge_checks"
                return _with(Decision(error=problem, terminal=TerminalState.MODEL_ERROR), spent, text)
            read = self._format.parse(self._parsed(answer), image.space)
            if not read.errors and not any(isinstance(action, Zoom) for action in read.actions):
                return _with(Decision(read.actions, thought=read.thought), spent, text)
            closer = None if read.errors else _closer(read.actions, observation.screenshot, looks)
            if isinstance(closer, SentImage):
                shown, failed, looks = closer, "", looks + 1
                continue
            problem, corrections = closer or read.problem, corrections + 1
            if corrections > CORRECTIONS:
                ended = Decision(thought=read.thought, error=problem, terminal=TerminalState.PARSE_ERROR)
                return _with(ended, spent, text)
            shown, failed = image, f"Nothing of this was carried out: {problem}"

    @abstractmethod
    def _begin(self) -> None:
        """Forget the conversation."""

    @abstractmethod
    async def _send(self, image: SentImage, failed: str) -> dict[str, Any]:
        """Ask once. Goes on with the conversation where the answer came whole, and only there."""

    def _parsed(self, answer: dict[str, Any]) -> dict[str, Any]:
        """What of an answer the format reads."""
        return answer

    @abstractmethod
    def _usage(self, answer: dict[str, Any]) -> Usage:
        """The tokens that an answer says it took."""

    @abstractmethod
    def _readable(self, answer: dict[str, Any]) -> str:
        """What the model wrote, for people."""

    def _check(self, answer: dict[str, Any]) -> str:
        """What the provider wants a person to check, where nobody takes that on."""
        return ""


def _with(decision: Decision, spent: Usage, text: str) -> Decision:
    return Decision(decision.actions, text, decision.thought, decision.error, decision.terminal, usage=dict(spent))


def _closer(actions: Sequence[Action], screenshot: NDArray[np.uint8], looks: int) -> SentImage | str:
    """The part of a screenshot that is wanted, as large as a screenshot may be; or why it is not shown."""
    zoom = actions[0]
    if len(actions) > 1 or not isinstance(zoom, Zoom):
        return "zoom has to be the only action of a turn"
    if looks == LOOKS:
        return f"{LOOKS} looks at one screenshot are enough: act"
    try:
        return fit_image(zoom.cropped(screenshot), enlarge=True)
    except ValueError as error:
        return str(error)


def counted(usage: Any, **names: str) -> Usage:
    """Tokens of an API's own counts, each by a path such as "input_tokens_details.cached_tokens"."""
    found = Usage()
    for name, path in names.items():
        value = usage
        for part in path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        found[name] = value if isinstance(value, int) and value > 0 else 0
    return found


def fit_image(screenshot: NDArray[np.uint8], limit: tuple[int, int] = MAX_IMAGE, *, enlarge: bool = False) -> SentImage:
    """Scale an (H, W, 3) screenshot into (width, height) pixels, keeping its shape; smaller ones stay, or `enlarge`."""
    height, width = screenshot.shape[:2]
    scale = min(math.inf if enlarge else 1.0, limit[0] / width, limit[1] / height)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    image = Image.fromarray(screenshot)
    if size != image.size:
        image = image.resize(size, Image.Resampling.LANCZOS)
    return SentImage(base64.b64encode(encode_png(np.asarray(image))).decode(), CoordinateSpace((width, height), size))


def left_out(shown: int, keep: int) -> int:
    """How many of the oldest screenshots go: `keep` at a time, so that until then requests begin as those before."""
    excess = max(0, shown - keep)
    return excess - excess % max(1, keep)


def drop_images(messages: Sequence[dict[str, Any]], keep: int) -> None:
    """Replace old images of a conversation (blocks of type "image"), in place, by a word; at least `keep` stay."""
    places = [
        (blocks, index)
        for message in messages
        for blocks in _block_lists(message["content"])
        for index, block in enumerate(blocks)
        if isinstance(block, dict) and block.get("type") == "image"
    ]
    for blocks, index in places[: left_out(len(places), keep)]:
        blocks[index] = {"type": "text", "text": LEFT_OUT}


def _block_lists(content: Any) -> list[list[Any]]:
    """The lists of blocks in a message: its content, and that of its tool results."""
    if not isinstance(content, list):
        return []
    inner = [
        block["content"] for block in content if isinstance(block, dict) and isinstance(block.get("content"), list)
    ]
    return [content, *inner]


def connect(provider: Provider, base_url: str | None = None) -> Any:
    """The SDK's asynchronous client, which tries nothing again by itself: `HostedCalls` does.

    Raises:
        ConfigurationError: the key is missing.
        MissingDependencyError: the SDK is not installed.
    """
    sdk = provider.sdk()
    key = os.environ.get(provider.key_variable, "").strip()
    if not key:
        raise ConfigurationError(
            f"{provider.name} needs a key: set the environment variable {provider.key_variable} "
            "(no option takes it, so that no log or record has it)"
        )
    if provider is GEMINI:
        options = {"base_url": base_url, "timeout": int(1000 * TIMEOUT_S), "retry_options": {"attempts": 1}}
        return sdk.Client(api_key=key, http_options=options).aio
    make = sdk.AsyncAnthropic if provider is ANTHROPIC else sdk.AsyncOpenAI
    return make(api_key=key, base_url=base_url, timeout=TIMEOUT_S, max_retries=0)
