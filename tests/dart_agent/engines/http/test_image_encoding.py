"""An image is encoded once while somebody holds it."""

import gc

import numpy as np

from dart_agent.engines.http import image_encoding
from dart_agent.engines.http.image_encoding import EncodedImage, ImageEncoder, encode
from tests.dart_agent.engines.vllm_prompts import frame
from tests.dart_agent.engines.vllm_stub import pixels


async def test_an_image_is_encoded_once_and_forgotten_with_it(monkeypatch):
    encoder, made = ImageEncoder(capacity=60_000), []
    monkeypatch.setattr(image_encoding, "encode", lambda image: made.append(1) or encode(image))
    small, large = frame(1), frame(2, 500, 400)
    for image in (small, large):
        first, second = (*await encoder.encode([image]), *await encoder.encode([image]))
        assert first is second and np.array_equal(pixels(first.url), image)
    assert len(made) == 2
    [again] = await encoder.encode([small])  # there was no room for both
    assert len(made) == 3 and again == encode(small)
    [named] = await encoder.encode([large], unneeded={encode(large).name})
    assert len(made) == 3 and named == EncodedImage(encode(large).name)
    assert encode(small.copy()).name == again.name != named.name
    del image, large
    gc.collect()
    assert len(encoder.names) == 1, "of images that nobody holds nothing is kept by identity"
