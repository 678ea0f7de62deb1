"""Codecs: lossless ones give the same pixels, lossy ones the same picture, and nonsense is refused."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from dart_gym.cluster.wire import image_codecs
from dart_gym.core.errors import ProtocolError


def screen(width: int = 400, height: int = 300) -> np.ndarray:
    """A window with coloured text, as lossy codecs find it hard."""
    image = Image.new("RGB", (width, height), (236, 236, 236))
    draw = ImageDraw.Draw(image)
    draw.rectangle((20, 20, width - 20, height - 20), (255, 255, 255), outline=(40, 40, 40))
    for row in range(30, height - 40, 14):
        draw.text((30, row), "The quick brown fox jumps over the lazy dog", (200, 0, 0) if row % 4 else (0, 0, 180))
    return np.asarray(image)


def there_and_back(image: np.ndarray, codec: str) -> np.ndarray:
    return image_codecs.decode_image(*image_codecs.encode_image(image, codec))


@pytest.mark.parametrize("codec", image_codecs.CODECS)
def test_a_screen_comes_back(codec):
    image = screen()
    found = there_and_back(image, codec)
    assert found.shape == image.shape and found.dtype == np.uint8 and found.flags.writeable
    error = np.abs(found.astype(int) - image)
    if codec in ("raw", "png"):
        assert not error.any()
    else:
        assert 0 < error.mean() < 5.0  # lossy, and still the same picture


@pytest.mark.parametrize("codec", image_codecs.CODECS)
def test_an_image_that_is_a_view_of_another_comes_back(codec):
    view = screen()[::2, ::-1]
    assert np.abs(there_and_back(view, codec).astype(int) - view).mean() < 8.0


def test_raw_copies_nothing_to_encode():
    image = screen()
    _, body = image_codecs.encode_image(image, "raw")
    assert np.shares_memory(np.frombuffer(body, np.uint8), image)


def test_only_big_images_that_are_compressed_are_slow():
    big, small = np.zeros((1080, 1920, 3), np.uint8), np.zeros((100, 100, 3), np.uint8)
    assert [codec for codec in image_codecs.CODECS if image_codecs.is_slow(big, codec)] == ["png", "webp", "jpeg"]
    assert not any(image_codecs.is_slow(small, codec) for codec in image_codecs.CODECS)


@pytest.mark.parametrize("claimed", ["png", "webp", "jpeg"])
@pytest.mark.parametrize("real", ["png", "webp", "jpeg", "gif"])
def test_a_codec_is_what_it_claims_to_be(claimed, real):
    buffer = io.BytesIO()
    Image.fromarray(screen(80, 60)).save(buffer, real)
    if claimed == real:
        assert image_codecs.decode_image([claimed, 60, 80], buffer.getvalue()).shape == (60, 80, 3)
        with pytest.raises(ProtocolError, match="not"):
            image_codecs.decode_image([claimed, 60, 81], buffer.getvalue())
    else:
        with pytest.raises(ProtocolError, match=f"not {claimed}"):
            image_codecs.decode_image([claimed, 60, 80], buffer.getvalue())


ENCODED = {codec: bytes(image_codecs.encode_image(screen(64, 48), codec)[1]) for codec in image_codecs.CODECS}


@settings(max_examples=2 * settings().max_examples)
@given(st.sampled_from(image_codecs.CODECS), st.data())
def test_a_damaged_image_gives_a_protocol_error_at_worst(codec, data):
    body = bytearray(ENCODED[codec])
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    del body[data.draw(st.integers(0, len(body))) :]
    try:
        assert image_codecs.decode_image([codec, 48, 64], bytes(body)).shape == (48, 64, 3)
    except ProtocolError:
        pass
