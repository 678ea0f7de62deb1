"""Screenshots by the hash of their pixels: equal screens are one file, and a file that changed is noticed."""

import hashlib
import io
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dart_agent.episodes.trajectory import Step, Trajectory

Images = dict[str, NDArray[np.uint8]]
"""(H, W, 3) uint8 images by their content hash."""


def image_hash(image: NDArray[np.uint8]) -> str:
    """Return the content hash of an (H, W, 3) uint8 image: 32 hex digits, of its shape and pixels."""
    digest = hashlib.blake2b(repr(image.shape).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(image).data)
    return digest.hexdigest()


def decode_image(data: bytes) -> NDArray[np.uint8]:
    """Return a PNG or WebP as (H, W, 3) uint8. Raises `OSError`, `SyntaxError`, `ValueError`: damaged, or too large."""
    try:
        with Image.open(io.BytesIO(data), formats=("PNG", "WEBP")) as picture:
            return np.array(picture.convert("RGB"))
    except Image.DecompressionBombError as error:
        raise ValueError(str(error)) from error


class ImageNames:
    """Replaces the pixels of an episode's steps by content hashes; what several prompts show is hashed once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[NDArray[np.uint8], str]] = {}  # by identity; holding an image keeps its identity

    def name(self, step: Step) -> tuple[Step, Images]:
        """Return the step as it is stored, and its images by hash. Steps come in their order."""
        pixels = step.pixels
        if pixels is None:
            return step, {}
        shown = [image for image in (pixels.screen, *pixels.prompt, pixels.after) if image is not None]
        self._known = {id(image): self._known.get(id(image)) or (image, image_hash(image)) for image in shown}
        hashes = tuple(self._known[id(image)][1] for image in pixels.prompt)
        named = replace(
            step,
            image_hashes=hashes,
            screenshot=self._hash(pixels.screen) or (hashes[-1] if hashes else ""),
            screenshot_after=self._hash(pixels.after),
            pixels=None,
        )
        return named, {name: image for image, name in self._known.values()}

    def _hash(self, image: NDArray[np.uint8] | None) -> str:
        return "" if image is None else self._known[id(image)][1]


def name_images(trajectory: Trajectory) -> tuple[Trajectory, Images]:
    """Return a trajectory with content hashes instead of its pixels, and the images of its steps by hash."""
    names, images, steps = ImageNames(), Images(), list[Step]()
    for step in trajectory.steps:
        stored, shown = names.name(step)
        steps.append(stored)
        images |= shown
    return replace(trajectory, steps=tuple(steps)), images


def prompt_bytes(trajectory: Trajectory) -> int:
    """Return the memory that the screenshots of its prompts hold, in bytes; each image counts once."""
    pixels = [step.pixels.prompt for step in trajectory.steps if step.pixels is not None]
    return sum({id(image): image.nbytes for prompt in pixels for image in prompt}.values())
