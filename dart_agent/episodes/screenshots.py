"""Screenshots by the hash of their pixels: equal screens are one file, and a file that changed is noticed."""

import hashlib
import io
import os
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from dart_agent.episodes.trajectory import Image, Step, Trajectory
from dart_gym.utils.png import encode_png

Images = dict[str, NDArray[np.uint8] | bytes]
"""(H, W, 3) uint8 images, or their PNGs, by their content hash."""
LARGE = 300_000  # bytes of pixels; smaller ones are packed sooner than a thread has begun
_PACKERS = ThreadPoolExecutor(os.cpu_count(), "pack")


def image_hash(image: NDArray[np.uint8]) -> str:
    """Return the content hash of an (H, W, 3) uint8 image: 32 hex digits, of its shape and pixels."""
    digest = hashlib.blake2b(repr(image.shape).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(image).data)
    return digest.hexdigest()


def pack(image: Image) -> Image:
    """Return what is kept of an image that is only to be stored: its hash and PNG, made in a thread."""
    if isinstance(image, Future) or image.nbytes < LARGE:
        return image
    return _PACKERS.submit(lambda pixels: (image_hash(pixels), encode_png(pixels)), image)


def decode_image(data: bytes) -> NDArray[np.uint8]:
    """Return a PNG or WebP as (H, W, 3) uint8.

    Raises:
        OSError: if the data is not an image.
        SyntaxError: if a PNG is damaged.
        ValueError: if the image is too large.
    """
    try:
        with PIL.Image.open(io.BytesIO(data), formats=("PNG", "WEBP")) as picture:
            return np.array(picture.convert("RGB"))
    except PIL.Image.DecompressionBombError as error:
        raise ValueError(str(error)) from error


class ImageNames:
    """Replaces the pixels of an episode's steps by content hashes; what several prompts show is hashed once."""

    def __init__(self) -> None:
        # By identity, which is kept by holding the image: its hash, and what is stored.
        self._known: dict[int, tuple[object, str, NDArray[np.uint8] | bytes]] = {}

    def name(self, step: Step) -> tuple[Step, Images]:
        """Return the step as it is stored, and its images by hash. Steps come in their order."""
        pixels = step.pixels
        if pixels is None:
            return step, {}
        shown = [image for image in (pixels.screen, *pixels.prompt, pixels.after) if image is not None]
        self._known = {id(image): self._known.get(id(image)) or (image, *_named(image)) for image in shown}
        hashes = tuple(self._known[id(image)][1] for image in pixels.prompt)
        named = replace(
            step,
            image_hashes=hashes,
            screenshot=self._hash(pixels.screen) or (hashes[-1] if hashes else ""),
            screenshot_after=self._hash(pixels.after),
            pixels=None,
        )
        return named, {name: stored for _, name, stored in self._known.values()}

    def _hash(self, image: NDArray[np.uint8] | None) -> str:
        return "" if image is None else self._known[id(image)][1]


def name_images(trajectory: Trajectory) -> tuple[Trajectory, Images]:
    """Return a trajectory with content hashes instead of its pixels, and the images of its steps by hash."""
    names = ImageNames()
    images = Images()
    steps = list[Step]()
    for step in trajectory.steps:
        stored, shown = names.name(step)
        steps.append(stored)
        images |= shown
    return replace(trajectory, steps=tuple(steps)), images


def prompt_bytes(trajectory: Trajectory) -> int:
    """Return the memory that the screenshots of its prompts hold, in bytes; each counts once, and once it is packed."""
    pixels = [step.pixels.prompt for step in trajectory.steps if step.pixels is not None]
    return sum(_size(image) for image in {id(image): image for prompt in pixels for image in prompt}.values())


def _named(image: Image) -> tuple[str, NDArray[np.uint8] | bytes]:
    return image.result() if isinstance(image, Future) else (image_hash(image), image)


def _size(image: Image) -> int:
    if isinstance(image, Future):
        return len(image.result()[1]) if image.done() else 0
    return image.nbytes
