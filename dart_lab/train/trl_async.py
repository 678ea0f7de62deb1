"""TRL's `AsyncGRPOTrainer` on a machine without a GPU, for comparisons with ours.

All of TRL's own code runs: the child process that plays, scores and makes advantages, the queue and what it drops as
stale, prefix trees of rows, loss, optimizer and the publishing of weights after each step. What needs CUDA or vLLM is
replaced:

- FlashAttention 3, a kernel from a hub, by torch's attention over the same segments of queries and keys;
- the name of the GPU, from which TRL takes its peak for MFU, by none;
- the vLLM server by `CompletionServer`: an embedded engine of ours behind the one endpoint that TRL's child calls; TRL
  asks whether the package vLLM is installed, and is told that it is;
- NCCL by `EngineTransfer`, through TRL's `WeightTransferProtocol`: a file, loaded between two batches of the engine.

So nothing here says how fast TRL is, and neither its kernel, nor NCCL, nor a real vLLM server is tried.
"""

from __future__ import annotations

import asyncio
import json
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from dart_agent.engines.base.engine import Prompt, Sampling
from dart_agent.engines.embedded.transformers_engine import TransformersEngine
from dart_agent.models.model_tokens import ModelTokens
from dart_train.trainer.batches.collator import Sample

PARTS = "trl.experimental.async_grpo"


@contextmanager
def without_gpu() -> Iterator[None]:
    """Let TRL's asynchronous trainer be made and run on a machine without CUDA and vLLM while the context is open."""
    with ExitStack() as stack:
        kernel = SimpleNamespace(flash_attn_varlen_func=varlen_attention)
        stack.enter_context(patch(f"{PARTS}.packing._flash_attn", lambda: kernel))
        stack.enter_context(patch(f"{PARTS}.async_grpo_trainer.get_peak_flops_per_device", lambda *_: None))
        stack.enter_context(patch(f"{PARTS}.async_rollout_worker.is_vllm_available", lambda *_: True))
        yield


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_bounds: Tensor,
    key_bounds: Tensor,
    longest_query: int,
    longest_key: int,
    *,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
) -> Tensor:
    """Compute what FlashAttention's function of this name does, in torch.

    Args:
        query: (queries, heads, width).
        key: (keys, key heads, width).
        value: (keys, key heads, width).
        query_bounds: where segments of queries begin and end.
        key_bounds: where the keys of each begin and end.
        longest_query: not needed here.
        longest_key: not needed here.
        softmax_scale: factor of the products.
        causal: must be True: the last query of a segment sees its last key.
        window_size: must be unlimited.

    Raises:
        ValueError: if other attention is asked for.
    """
    if not causal or window_size != (-1, -1):
        raise ValueError(f"only causal attention without a window is computed here, not {causal=}, {window_size=}")
    found = []
    queries, keys = query_bounds.tolist(), key_bounds.tolist()
    for begin, end, first, last in zip(queries, queries[1:], keys, keys[1:], strict=False):
        seen = torch.ones(end - begin, last - first, dtype=torch.bool).tril(last - first - (end - begin))
        own = query[begin:end].transpose(0, 1)
        keys_seen = key[first:last].transpose(0, 1)
        values_seen = value[first:last].transpose(0, 1)
        out = F.scaled_dot_product_attention(
            own, keys_seen, values_seen, attn_mask=seen, scale=softmax_scale, enable_gqa=True
        )
        found.append(out.transpose(0, 1))
    return torch.cat(found)


class GivenRows:
    """TRL's `RolloutWorkerProtocol`: rows that are there already.

    Args:
        rows: of TRL's `RolloutSample`.
    """

    def __init__(self, rows: Sequence[Any]) -> None:
        self.rollout_buffer: queue.Queue[Any] = queue.Queue()
        self.metrics_queue: queue.Queue[Any] = queue.Queue()
        for row in rows:
            self.rollout_buffer.put(row)

    def start(self) -> None:
        """Nothing is played."""

    def stop(self) -> None:
        """Nothing is held."""

    def update_model_version(self, model_version: int) -> None:
        """Nothing is sampled with it."""

    def check_health(self, stale_after_s: float) -> None:
        """Called when the rows are used up.

        Raises:
            RuntimeError: always; TRL would wait for more rows.
        """
        raise RuntimeError("all of the given rows are used up")


class NoTransfer:
    """TRL's `WeightTransferProtocol` without a server."""

    def init_weight_transfer(self) -> None:
        """Nothing to connect to."""

    def pause(self) -> None:
        """Nothing runs."""

    def send_weights(self, iterator: Iterator[tuple[str, Tensor]]) -> None:
        """Leave the weights where they are."""
        for _ in iterator:
            pass

    def resume(self) -> None:
        """Nothing waits."""

    def destroy(self) -> None:
        """Nothing is held."""


class EngineTransfer(NoTransfer):
    """TRL's `WeightTransferProtocol` into an embedded engine.

    TRL sends what it trains, the text model. The tower stays as the engine has it.

    Args:
        engine: that gets the weights.
        directory: for the file; a version replaces the last one.
    """

    def __init__(self, engine: TransformersEngine, directory: Path) -> None:
        self._engine, self._directory = engine, directory
        self.versions = 0
        directory.mkdir()

    def send_weights(self, iterator: Iterator[tuple[str, Tensor]]) -> None:
        """Write the weights to the file and load it."""
        own = dict(self._engine.runner.model.state_dict())
        sent = {name: tensor.detach().float() for name, tensor in iterator}
        save_file(
            {name: tensor.contiguous().clone() for name, tensor in {**own, **sent}.items()},
            self._directory / "model.safetensors",
        )
        self.versions += 1
        asyncio.run(self._engine.update_weights(str(self._directory), self.versions))


class CompletionServer:
    """The endpoint of a vLLM server that TRL's child process calls, `/v1/completions`, in front of an embedded engine.

    Use as a context manager. Responses never hold tokens that the engine suppresses. Settings that would bias
    log-probabilities are refused with status 400.

    Attributes:
        url: where it listens, on this machine.
        answered: requests.
    """

    def __init__(self, engine: TransformersEngine, tokens: ModelTokens) -> None:
        self._engine, self._tokens = engine, tokens
        self.answered = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="completions", daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> CompletionServer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def complete(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return vLLM's reply to a request, as far as TRL reads it.

        Raises:
            ValueError: if the request asks for sampling that biases log-probabilities.
        """
        biased = {"top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0, "min_p": 0.0, "n": 1}
        for name, unbiased in biased.items():
            if request.get(name, unbiased) != unbiased:
                raise ValueError(f"{name}={request[name]} is not served here: leave it at {unbiased}")
        sampling = Sampling(request["max_tokens"], request["temperature"], request["seed"], training=True)
        made = asyncio.run(self._engine.generate(Prompt(tuple(request["prompt"])), sampling.completed(self._tokens)))
        self.answered += 1
        choice = {"token_ids": made.response_ids, "logprobs": {"token_logprobs": made.logprobs}}
        return {"choices": [choice]}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path != "/v1/completions":
                    return self._answer(404, {"error": f"{self.path} is not served here"})
                try:
                    self._answer(200, server.complete(json.loads(body)))
                except ValueError as error:
                    self._answer(400, {"error": str(error)})

            def _answer(self, status: int, content: dict[str, Any]) -> None:
                text = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: Any) -> None:
                """Requests are not worth a line."""

        return Handler


def make_trainer(
    model_dir: Path,
    output_dir: Path,
    *,
    dtype: torch.dtype = torch.float32,
    prompts: Sequence[Any] = ("a",) * 8,
    rollout_worker: Any = None,
    weight_transfer: Any = None,
    reward_funcs: Any = None,
    **settings: Any,
) -> Any:
    """Return TRL's asynchronous trainer of a Qwen-VL model; it notes the loss of each of its micro-batches.

    Args:
        model_dir: of the model; TRL trains its text part.
        output_dir: for what TRL writes.
        dtype: of the weights.
        prompts: the column `prompt` of TRL's data set.
        rollout_worker: None for TRL's own, which starts a process.
        weight_transfer: None for TRL's own, which needs vLLM and NCCL.
        reward_funcs: as TRL takes them.
        settings: of `AsyncGRPOConfig`.
    """
    from datasets import Dataset
    from transformers import AutoTokenizer, PrinterCallback
    from trl.chat_template_utils import qwen3_vl_chat_template
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    class Noted(AsyncGRPOTrainer):
        def __init__(self, *args: Any, **options: Any) -> None:
            self.losses: list[float] = []
            super().__init__(*args, **options)

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Tensor:
            loss: Tensor = super().compute_loss(model, inputs, *args, **options)
            self.losses.append(float(loss.detach()))
            return loss

    defaults: dict[str, Any] = {
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "gradient_checkpointing": False,
        "token_budget": 0,
        "model_init_kwargs": {"dtype": dtype},
    }
    processing = AutoTokenizer.from_pretrained(model_dir)
    processing.chat_template = qwen3_vl_chat_template  # one that TRL can read replies of
    trainer = Noted(
        model=str(model_dir),
        args=AsyncGRPOConfig(str(output_dir), **(defaults | settings)),
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
        processing_class=processing,
        rollout_worker=rollout_worker,
        weight_transfer=weight_transfer or NoTransfer(),
        reward_funcs=reward_funcs,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def row_of(turns: Sequence[Sample], *, model_version: int = 0) -> Any:
    """Return TRL's row of an episode whose prompts each begin with all that came before: one sequence, with a mask."""
    import numpy as np
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

    last = turns[-1]
    ids = np.asarray((*last.prompt_ids, *last.response_ids), np.int64)
    mask, logprobs = np.zeros(len(ids), np.int64), np.zeros(len(ids), np.float32)
    for turn in turns:
        part = slice(len(turn.prompt_ids), len(turn.prompt_ids) + len(turn.response_ids))
        mask[part], logprobs[part] = 1, turn.logprobs
    return RolloutSample(
        prompt=[],
        completion=[],
        input_ids=ids,
        completion_mask=mask,
        old_log_probs=logprobs,
        advantage=last.advantage,
        model_version=model_version,
        group_id=last.group,
        metrics={"reward": 0.0},
        enqueued_at=time.time(),
    )


def samples_of(row: Any, trajectory: int) -> list[Sample]:
    """Return our samples of a row of TRL's: one for each span that is trained."""
    ids = row.input_ids.tolist()
    mask = row.completion_mask.tolist()
    logprobs = row.old_log_probs.tolist()
    bounds = [place for place in range(1, len(mask)) if mask[place] != mask[place - 1]] + [len(mask)]
    found = []
    for begin, end in zip(bounds, bounds[1:], strict=False):
        if mask[begin]:
            found.append(
                Sample(
                    tuple(ids[:begin]),
                    (),
                    tuple(ids[begin:end]),
                    tuple(logprobs[begin:end]),
                    row.advantage,
                    row.group_id,
                    trajectory,
                    version=row.model_version,
                )
            )
    return found
