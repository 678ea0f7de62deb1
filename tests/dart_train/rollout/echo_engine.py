"""An engine server without a model, for tests of what surrounds engines: the real protocol in a real process.

It answers with the first ids of the prompt that a model may write, and a text of its choice; of given ids it says -1. A
weights directory is any directory with a `config.json`; the word "unfit" in its name makes loading fail. `--say` is the
text of all responses.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

from dart_agent.engines.base.engine import EngineError, EngineInfo, Generation, Prompt, Sampling
from dart_agent.engines.kinds.transformers_server import TransformersServer
from dart_agent.engines.remote.engine_server import run


class EchoServer(TransformersServer):
    """The kind of engine whose servers are this file, as somebody's own kind would be: named by module:Class."""

    program = (sys.executable, "-m", "echo_engine")


class EchoEngine:
    def __init__(self, name: str, model: str, version: int, delay_s: float, say: str) -> None:
        self._name, self._model, self._version, self._delay, self._say = name, model, version, delay_s, say
        self._busy = 0.0

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        if min(prompt.token_ids) < 0:
            raise EngineError("negative token id")
        started = time.perf_counter()
        await asyncio.sleep(self._delay)
        seconds = time.perf_counter() - started
        self._busy += seconds
        unfit = {*sampling.suppressed_ids, *sampling.stop_ids}  # which no model could have sampled, or gone on after
        fit = tuple(token for token in prompt.token_ids if token not in unfit)
        ids = sampling.given_ids or fit[: min(4, sampling.max_tokens)]
        logprobs = tuple(-1.0 for _ in ids)
        return Generation(
            self._say, ids, logprobs, (self._version,) * 2, "stop", engine=self._name, seconds=(0, seconds)
        )

    async def update_weights(self, path: str, version: int) -> None:
        await asyncio.sleep(self._delay)
        if "unfit" in Path(path).name:
            raise EngineError(f"the weights at {path} do not fit")
        self._model, self._version = path, version

    async def info(self) -> EngineInfo:
        return EngineInfo(self._name, self._model, self._version, busy_s=self._busy)

    async def close(self) -> None:
        """Nothing is held."""


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--model", "--listen", "--name", "--say"):
        parser.add_argument(name, default="")
    for name in ("--version", "--threads", "--max-batch"):
        parser.add_argument(name, type=int, default=0)
    parser.add_argument("--delay", type=float, default=0.01)
    args = parser.parse_args()
    if not (Path(args.model) / "config.json").exists():
        raise SystemExit(f"no model at {args.model}")
    asyncio.run(run(EchoEngine(args.name, args.model, args.version, args.delay, args.say), args.listen))


if __name__ == "__main__":
    main()
