"""Screens as bytes: the image codecs of the cluster's protocol.

`raw` and `png` are lossless: the client gets the very pixels that a local session gives, which evaluation and
recorded training data need. `webp` and `jpeg` are lossy (quality 90, colours not subsampled where the format allows
it, because coloured text suffers): for throughput over a network, where a policy does not mind.

Invariants:
    - Decoding gives a new, writable array of exactly the announced size, or raises `ProtocolError`.
    - A codec is never changed behind the client's back: an image names its own.
"""

import io
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dart_gym.core.errors import ProtocolError
from dart_gym.utils.png import encode_png

CODECS = ("raw", "png", "webp", "jpeg")
MAX_SCREEN_SIDE = 16_384
_BIG_IMAGE_BYTES = 500_000  # of pixels; compressing more takes milliseconds
_SAVE_OPTIONS: dict[str, dict[str, Any]] = {
    "webp": {"quality": 90, "method": 0},
    "jpeg": {"quality": 90, "subsampling": "4:4:4"},
}


def is_slow(image: NDArray[np.uint8], codec: str) -> bool:
    """Return whether encoding is slow enough to belong into a thread, away from the event loop."""
    return codec in ("png", "webp", "jpeg") and image.nbytes > _BIG_IMAGE_BYTES


def encode_image(image: NDArray[np.uint8], codec: str) -> tuple[list[Any], bytes | memoryview]:
    """The description `[codec, height, width]` of an image and its bytes; `raw` copies none of a contiguous one."""
    image = np.ascontiguousarray(image)
    description = [codec, *image.shape[:2]]
    if codec == "raw":
        return description, image.data.cast("B")
    if codec == "png":
        return description, encode_png(image)
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, codec, **_SAVE_OPTIONS[codec])
    return description, buffer.getvalue()


def decode_image(description: list[Any], body: bytes | memoryview) -> NDArray[np.uint8]:
    """An image from its description and bytes; raises `ProtocolError`."""
    if len(description) != 3 or description[0] not in CODECS:
        raise ProtocolError(f"an image is described by [codec, height, width], got {description!r:.100}")
    codec, height, width = description
    for side in (height, width):
        if isinstance(side, bool) or not isinstance(side, int) or not 1 <= side <= MAX_SCREEN_SIDE:
            raise ProtocolError(f"bad image size {description[1:]!r:.60}")
    if codec != "raw":
        return _decompress(codec, body, height, width)
    if len(body) != height * width * 3:
        raise ProtocolError(f"a raw {width}x{height} image has {height * width * 3} bytes, got {len(body)}")
    return np.frombuffer(body, np.uint8).reshape(height, width, 3).copy()


def _decompress(codec: str, body: bytes | memoryview, height: int, width: int) -> NDArray[np.uint8]:
    try:
        with Image.open(io.BytesIO(body), formats=[codec.upper()]) as image:
            if image.size != (width, height) or image.mode != "RGB":
                raise ProtocolError(f"the image is {image.size}, {image.mode}, not {(width, height)}, RGB")
            return np.array(image)
    except (OSError, SyntaxError, ValueError, struct.error, Image.DecompressionBombError) as error:
        raise ProtocolError(f"the image is not {codec}: {error}") from None
