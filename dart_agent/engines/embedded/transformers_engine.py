"""TransformersEngine: a model of the Qwen-VL family in this process, with batching and exact log-probabilities.

One worker thread owns the model. It takes everything that waits (up to `max_batch`), samples it as one batch, and
looks again. Weight updates go through the same queue, so they fall between two batches: one response is always
made by one version, and a failed update leaves the old weights in place. Weights from a trainer's memory are read
whole, beside the batches, before they are queued.
"""

import asyncio
import logging
import queue
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import torch

from dart_agent.engines.base.engine import EngineError, EngineInfo, Generation, Prompt, Sampling
from dart_agent.engines.embedded.memory_weights import staged_weights
from dart_agent.engines.embedded.qwen_runner import QwenRunner, SampledRow
from dart_agent.engines.weight_stream.dart_weight_socket import SCHEME
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Request:
    prompt: Prompt
    sampling: Sampling
    future: Future[Generation]
    queued_at: float


@dataclass(slots=True)
class _Update:
    """`staged`: the tensors, where they are here already."""

    path: str
    version: int
    future: Future[None]
    staged: dict[str, torch.Tensor] | None = None


class TransformersEngine:
    """An `Engine` around a model in this process."""

    def __init__(
        self,
        model_dir: str | Path,
        *,
        name: str = "local",
        version: int = 0,
        threads: int | None = None,
        max_batch: int = 32,
        device: str = "cpu",
        dtype: str = "float32",
        vision_cache: int = 256,
    ) -> None:
        """Load a model."""
        if threads is not None:
            torch.set_num_threads(threads)
        self._name = name
        self._path = str(model_dir)
        self._version = version
        self._max_batch = max_batch
        self._tokens = ModelTokens.load(model_dir)
        self.runner = QwenRunner.load(
            model_dir, VisionSpec.from_dir(model_dir), device=device, dtype=dtype, vision_cache=vision_cache
        )
        self._queue: queue.SimpleQueue[_Request | _Update | None] = queue.SimpleQueue()
        self._closed = False
        self._in_flight = self._computing = self._requests = self._generated = 0
        self._busy_s = 0.0
        self._worker = threading.Thread(target=self._work, name=f"engine-{name}", daemon=True)
        self._worker.start()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """Sample one response; concurrent calls share batches. Raises `EngineError`."""
        self._check_open()
        self.runner.check(prompt, sampling)
        request = _Request(prompt, sampling, Future(), time.perf_counter())
        self._in_flight += 1
        try:
            self._queue.put(request)
            return await asyncio.wrap_future(request.future)
        finally:
            self._in_flight -= 1

    async def update_weights(self, path: str, version: int) -> None:
        """Load weights into the live model between two batches: a checkpoint's, or those in a trainer's memory.

        Args:
            path: a checkpoint directory, or a version in a trainer's memory (`memory+unix:///path.sock#version`).
            version: what these weights are called from now on.

        Raises:
            UpdateNotBegun: if the trainer's weights did not arrive whole; nothing has changed.
            EngineError: if they cannot be loaded.
        """
        self._check_open()
        staged = None
        if path.startswith(SCHEME):
            staged = await asyncio.to_thread(staged_weights, path, self.runner.check_shapes)
        update = _Update(path, version, Future(), staged)
        self._queue.put(update)
        await asyncio.wrap_future(update.future)

    async def info(self) -> EngineInfo:
        """Current state; `busy_s` counts the seconds in which the model computed."""
        return EngineInfo(
            name=self._name,
            model=self._path,
            version=self._version,
            in_flight=self._in_flight,
            busy_s=self._busy_s,
            requests=self._requests,
            tokens=self._generated,
            waiting=max(0, self._in_flight - self._computing),
            capacity=self._max_batch,
        )

    async def close(self) -> None:
        """Finish what is running and stop the worker. Idempotent."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
        await asyncio.to_thread(self._worker.join)

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError(f"engine {self._name} is closed")

    def _work(self) -> None:
        """The worker: batches and updates in the order of arrival, until None arrives."""
        held: _Update | None = None
        while True:
            item = held or self._queue.get()
            held = None
            if item is None:
                return self._refuse_rest()
            if isinstance(item, _Update):
                self._apply(item)
                continue
            batch, held, stop = self._gather(item)
            self._run(batch)
            if stop:
                return self._refuse_rest()

    def _gather(self, first: _Request) -> tuple[list[_Request], _Update | None, bool]:
        """Everything that waits, up to `max_batch` or the next update; (batch, that update, whether to stop)."""
        batch = [first]
        while len(batch) < self._max_batch:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                break
            if item is None:
                return batch, None, True
            if isinstance(item, _Update):
                return batch, item, False
            batch.append(item)
        return batch, None, False

    def _refuse_rest(self) -> None:
        while True:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return
            if item is not None:
                item.future.set_exception(EngineError(f"engine {self._name} is closed"))

    def _run(self, batch: list[_Request]) -> None:
        batch = [request for request in batch if request.future.set_running_or_notify_cancel()]
        if not batch:
            return
        start = time.perf_counter()
        self._computing = len(batch)
        try:
            rows = self.runner.sample([request.prompt for request in batch], [request.sampling for request in batch])
        except Exception as error:  # a broken batch must not end the worker; every caller is told
            log.exception("engine %s failed on a batch of %d", self._name, len(batch))
            for request in batch:
                request.future.set_exception(EngineError(f"engine {self._name}: {type(error).__name__}: {error}"))
            return
        finally:
            seconds = time.perf_counter() - start
            self._busy_s += seconds
            self._computing = 0
        self._requests += len(batch)
        self._generated += sum(len(row.response_ids) for row in rows)
        for request, row in zip(batch, rows, strict=True):
            request.future.set_result(self._generation(row, start - request.queued_at, seconds))

    def _generation(self, row: SampledRow, queued: float, computed: float) -> Generation:
        return Generation(
            text=self._tokens.decode(row.response_ids),
            response_ids=row.response_ids,
            logprobs=row.logprobs,
            version=(self._version, self._version),
            finish_reason=row.finish_reason,
            entropy=row.entropy,
            routing=row.routing,
            engine=self._name,
            seconds=(queued, computed),
        )

    def _apply(self, update: _Update) -> None:
        if not update.future.set_running_or_notify_cancel():
            return
        staged, update.staged = update.staged, None
        try:
            if staged is None:
                self.runner.load_weights(update.path)
            else:
                self.runner.take_weights(staged)
        except Exception as error:  # whatever is wrong with a checkpoint, the engine goes on with what it has
            log.exception("engine %s keeps version %d", self._name, self._version)
            update.future.set_exception(
                EngineError(f"engine {self._name} keeps version {self._version}: cannot load {update.path}: {error}")
            )
            return
        self._path, self._version = update.path, update.version
        update.future.set_result(None)
