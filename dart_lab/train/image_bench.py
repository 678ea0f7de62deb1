"""Requests with screenshots through the vLLM client, against a stand-in that answers at once (`engine_stub`).

Desktops take steps side by side: each has a new screenshot of 1932x1092, and asks with the newest five.
The screenshots have the model's size already; what makes them is not what is measured, but takes its time too. Kinds:

- `blank`: one colour and a rectangle that moves.
- `sparse`: windows, text-like rows and small rectangles, as office programs are.
- `busy`: a third of the screen is a noisy photograph.
- `mix`: a desktop of each in turn.
"""

from __future__ import annotations

import asyncio
import base64
import io
import itertools
import json
import tempfile
import time
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dart_agent.engines.base.engine import Sampling
from dart_agent.engines.vllm.vllm_engine import VLLMEngine
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.tiny_model import TinyModelConfig, write_processing
from dart_agent.prompting.conversation import Conversation, ConversationConfig
from dart_lab.train.engine_stub import StubProcess

HEIGHT, WIDTH = 1092, 1932
SCREENSHOTS = 5
KINDS = ("blank", "sparse", "busy")
WINDOW = ConversationConfig(style="short", screenshots=SCREENSHOTS)


def screen(kind: str, rng: np.random.Generator) -> NDArray[np.uint8]:
    """A picture of a kind, (1092, 1932, 3) uint8."""
    image = np.full((HEIGHT, WIDTH, 3), 238, np.uint8)
    if kind == "blank":
        return image
    for _ in range(400):
        y, x = rng.integers(0, HEIGHT - 40), rng.integers(0, WIDTH - 200)
        image[y : y + rng.integers(2, 30), x : x + rng.integers(4, 200)] = rng.integers(0, 255, 3)
    for row in range(20, HEIGHT - 20, 24):
        image[row : row + 12, 50:900] = np.where(rng.random((12, 850, 1)) < 0.3, 30, 238)
    if kind == "busy":
        y, x = np.mgrid[0:600, 0:1000]
        waves = (128 + 90 * np.sin(x / 97) + 30 * np.sin(y / 13), 128 + 80 * np.cos(y / 71), x / 5)
        image[100:700, 500:1500] = (np.stack(waves, -1) + rng.normal(0, 6, (600, 1000, 3))).clip(0, 255)
    return image


def screenshots(kind: str, seed: int) -> Iterator[NDArray[np.uint8]]:
    """Yield different screens, step by step. The memory of one that left the window is used again."""
    rng = np.random.default_rng(seed)
    base = screen(kind, rng)
    ring = [base.copy() for _ in range(SCREENSHOTS + 2)]
    for step in itertools.count():
        image = ring[step % len(ring)].view()  # an array of its own
        y, x = rng.integers(0, HEIGHT - 50), rng.integers(0, WIDTH - 400)
        image[y : y + 40, x : x + 300] = rng.integers(0, 255, 3)
        yield image


async def measure_images(kinds: tuple[str, ...], *, desktops: int, seconds: float) -> dict[str, float]:
    """Requests a second of desktops, each of the next kind; the client's processor time for one, also by `anew_ms`."""
    with tempfile.TemporaryDirectory(prefix="dart-bench-") as folder:
        write_processing(Path(folder), TinyModelConfig(max_pixels=HEIGHT * WIDTH))
        tokens, vision = ModelTokens.load(folder), VisionSpec.from_dir(folder)
        async with StubProcess(folder) as (url,):
            engine = VLLMEngine(url, folder)
            try:
                shown = [screenshots(kinds[number % len(kinds)], number) for number in range(desktops)]
                episodes = [_begun(Conversation(tokens, vision, WINDOW), images) for images in shown]
                begun: list[float] = []  # the servers have the first screenshots before the clock starts
                await asyncio.gather(*map(_desktop, repeat(engine), episodes, shown, repeat(0.0), repeat(begun)))
                ended: list[float] = []
                started, used = time.perf_counter(), time.process_time()
                await asyncio.gather(
                    *(
                        _desktop(engine, episode, images, started + seconds, ended)
                        for episode, images in zip(episodes, shown, strict=True)
                    )
                )
                cpu_ms = 1e3 * (time.process_time() - used) / len(ended)
                rate = len(ended) / (max(ended) - started)
                return {"requests_per_s": rate, "cpu_ms": cpu_ms, "cpu_vs_anew": anew_ms(kinds) / cpu_ms}
            finally:
                await engine.close()


def anew_ms(kinds: tuple[str, ...]) -> float:
    """Processor time in ms of a request whose five screenshots are all encoded for it: by Pillow, and again in JSON."""
    spent = []
    for kind in kinds:
        images = list(itertools.islice(screenshots(kind, 0), SCREENSHOTS))
        started = time.process_time()
        urls = []
        for image in images:
            buffer = io.BytesIO()
            Image.fromarray(image).save(buffer, "PNG", compress_level=1)
            urls.append(f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}")
        json.dumps(urls).encode()
        spent.append(1e3 * (time.process_time() - started))
    return sum(spent) / len(spent)


def _begun(conversation: Conversation, images: Iterator[NDArray[np.uint8]]) -> Conversation:
    """An episode whose window lacks only the next screenshot."""
    conversation.begin("Open the settings")
    for _ in range(SCREENSHOTS - 1):
        conversation.observe(next(images))
        conversation.respond(())
    return conversation


async def _desktop(
    engine: VLLMEngine,
    conversation: Conversation,
    images: Iterator[NDArray[np.uint8]],
    deadline: float,
    ended: list[float],
) -> None:
    """Take steps until the time is over, at least one; notes when each was answered."""
    while True:
        conversation.observe(next(images))
        generation = await engine.generate(conversation.prompt(), Sampling(500))
        conversation.respond(generation.response_ids)
        ended.append(time.perf_counter())
        if ended[-1] >= deadline:
            return
