"""The fingerprint of published weights: what they answer to a few fixed prompts, with log-probabilities.

It lies in the weights' directory. A version number is what a server says of itself; its answers cannot be wrong about
which weights it has loaded. No torch here: the trainer makes it with the model at hand.

Invariants:
    - Greedy, a few tokens, one prompt with a small image: the cost of checking is that of one short request, and a
      vision tower with other weights, or whose features go astray, shows.
    - Rounding may turn a tie between two tokens around: answers are compared up to the first place where they part,
      and there the log-probabilities of both must still be equal within the tolerance.
"""

import asyncio
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dart_agent.engines.base.engine import Engine, EngineMismatch, Prompt, Sampling
from dart_agent.engines.base.engine_replies import checked
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_directory import FINGERPRINT
from dart_agent.models.model_tokens import ModelTokens
from dart_train.core.train_errors import CheckpointError

FILE = FINGERPRINT
TEXTS = ("Click on the tab", "Type a name and press enter", "Scroll down", "Is it done?")
QUESTION = "What is shown?"
IMAGE_SIZE = (112, 168)
"""Height and width before the model's own rounding."""
LENGTH = 2


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What weights answer.

    Attributes:
        response_ids: the likeliest continuation of each.
        images: (height, width) of each image of each prompt; `drawn` makes them.
    """

    prompts: tuple[tuple[int, ...], ...]
    response_ids: tuple[tuple[int, ...], ...]
    logprobs: tuple[tuple[float, ...], ...]
    suppressed_ids: tuple[int, ...]
    images: tuple[tuple[tuple[int, int], ...], ...] = ()

    def drawn(self, prompt: int) -> tuple[NDArray[np.uint8], ...]:
        """The images of a prompt, (height, width, 3) each."""
        return tuple(drawn_image(*size) for size in self.images[prompt]) if self.images else ()

    def write(self, directory: str | Path) -> None:
        """Put it into a directory of weights."""
        (Path(directory) / FILE).write_text(json.dumps(asdict(self)))


def read_fingerprint(directory: str | Path) -> Fingerprint | None:
    """Return the fingerprint in a directory of weights, or None if it has none.

    Raises:
        CheckpointError: if it is unreadable.
    """
    try:
        return fingerprint_of_fields(json.loads((Path(directory) / FILE).read_bytes()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{directory}/{FILE} cannot be read ({error}): publish this version again") from error


def fingerprint_of_fields(fields: dict[str, Any]) -> Fingerprint:
    """Return a fingerprint from the JSON object of its fields. Raises `ValueError`, `KeyError` or `TypeError`."""
    rows = {name: tuple(map(tuple, fields[name])) for name in ("prompts", "response_ids", "logprobs")}
    images = tuple(tuple((int(high), int(wide)) for high, wide in sizes) for sizes in fields["images"])
    found = Fingerprint(**rows, suppressed_ids=tuple(fields["suppressed_ids"]), images=images)
    counts = {len(found.prompts), len(found.response_ids), len(found.logprobs), len(images) or len(found.prompts)}
    if len(counts) > 1 or not found.prompts:
        raise ValueError("it has prompts without answers")
    return found


def fingerprint_prompts(
    tokens: ModelTokens, vision: VisionSpec
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[tuple[int, int], ...], ...]]:
    """The fixed prompts in a model's own ids, the last with an image; and the (height, width) of each one's images."""
    newline, size = tokens.encode("\n"), vision.resized(*IMAGE_SIZE)
    pads = [tokens.image_pad_id] * vision.num_tokens(drawn_image(*size))
    shown = (tokens.vision_start_id, *pads, tokens.vision_end_id)
    parts = [(text, (), ()) for text in TEXTS] + [(QUESTION, shown, (size,))]
    prompts = tuple(
        (
            *(tokens.im_start_id, *tokens.encode(f"user\n{text}"), *image, tokens.im_end_id, *newline),
            *(tokens.im_start_id, *tokens.encode("assistant\n")),
        )
        for text, image, _ in parts
    )
    return prompts, tuple(sizes for _, _, sizes in parts)


def drawn_image(height: int, width: int) -> NDArray[np.uint8]:
    """(height, width, 3) uint8: slopes of colour with lines across, the same at every time and place."""
    down, across = np.mgrid[0:height, 0:width]
    channels = (across * 255 // width, down * 255 // height, (across + 2 * down) % 97 * 2)
    return np.stack(channels, -1).astype(np.uint8)


def difference(
    expected: tuple[tuple[int, ...], tuple[float, ...]], got: tuple[tuple[int, ...], tuple[float, ...]]
) -> float:
    """Largest difference of log-probabilities up to the first place where the tokens part, that one included. Pure."""
    worst = 0.0
    for token, logprob, other_token, other in zip(*expected, *got, strict=False):
        apart = abs(logprob - other)
        worst = max(worst, apart if math.isfinite(apart) else math.inf)
        if token != other_token:
            break
    return worst


async def check_fingerprint(engine: Engine, directory: str | Path, tolerance: float) -> float | None:
    """Have an engine answer the prompts of published weights; how far it was off, None where they have no fingerprint.

    Raises:
        EngineMismatch: a log-probability is off by more than `tolerance` nats: it serves other weights.
        EngineError: it does not answer.
        CheckpointError: the fingerprint cannot be read.
    """
    published = await asyncio.to_thread(read_fingerprint, directory)
    return None if published is None else await compare_fingerprint(engine, published, tolerance, directory)


async def compare_fingerprint(engine: Engine, published: Fingerprint, tolerance: float, where: str | Path) -> float:
    """Have an engine answer a fingerprint's prompts; return how far it was off. Raises as `check_fingerprint`.

    Args:
        engine: that is asked.
        published: of the weights that it should serve.
        tolerance: most that a log-probability may be off, in nats.
        where: these weights are, for the error.
    """
    sampling = [
        Sampling(len(ids), temperature=0.0, suppressed_ids=published.suppressed_ids) for ids in published.response_ids
    ]
    answers = await asyncio.gather(
        *(
            engine.generate(Prompt(ids, published.drawn(number)), each)
            for number, (ids, each) in enumerate(zip(published.prompts, sampling, strict=True))
        )
    )
    sound = [checked(answer, each) for answer, each in zip(answers, sampling, strict=True)]
    worst = max(
        difference((ids, logprobs), (answer.response_ids, answer.logprobs))
        for ids, logprobs, answer in zip(published.response_ids, published.logprobs, sound, strict=True)
    )
    if not worst <= tolerance:
        raise EngineMismatch(
            f"its log-probabilities are {worst:.3g} off those of the weights in {where}, more than {tolerance:g}: "
            "it serves other weights, or another model"
        )
    return worst
