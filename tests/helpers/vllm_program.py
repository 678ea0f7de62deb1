"""A program `vllm` where none is installed: it takes the pinned vLLM's command line, and our engine serves the model.

`vllm serve MODEL ...` refuses, as vLLM does, an option or a value that it does not know, prompts that are longer than
`--max-model-len`, and more images than `--limit-mm-per-prompt` allows. Steering routes need `VLLM_SERVER_DEV_MODE`.
It writes its options and what it sees of the GPUs to `DART_FAKED_VLLM`, a line for each start.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # it is started without our paths, as vLLM is

from aiohttp import web

from dart_agent.engines.base.engine import Prompt, Sampling
from dart_agent.engines.embedded.transformers_engine import TransformersEngine
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from tests.dart_agent.engines.vllm_stub import VLLMStub
from tests.helpers.vllm_options import strict_parser


class ServedModel(VLLMStub):
    """The stub's routes with a model behind them."""

    def __init__(self, options: Namespace) -> None:
        super().__init__(ModelTokens.load(options.model), VisionSpec.from_dir(options.model))
        self.dev = os.environ.get("VLLM_SERVER_DEV_MODE") == "1"
        self.models, self.scale_out = options.served_model_name, bool(options.enable_scale_out)
        self._most_tokens, self._updates = int(options.max_model_len), 0
        self._most_images = json.loads(options.limit_mm_per_prompt)["image"]
        self._options, self.lora = options, bool(options.enable_lora)
        self.engine = self._serve(options.model)
        self._adapted: dict[str, TransformersEngine] = {}
        self._merging, self._scratch = asyncio.Lock(), tempfile.TemporaryDirectory(prefix="merged-")

    async def reply(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Sample with the model."""
        assert path == "/inference/v1/generate"
        params, prompt = body["sampling_params"], self._expanded(body)
        images = tuple(self._image(part) for part in body.get("content_parts") or ())
        if len(images) > self._most_images:
            raise web.HTTPBadRequest(text=f"At most {self._most_images} image(s) may be provided in one prompt.")
        if len(prompt) + params["max_tokens"] > self._most_tokens:
            raise web.HTTPBadRequest(text=f"This model's maximum context length is {self._most_tokens} tokens.")
        sampling = Sampling(
            params["max_tokens"],
            temperature=params["temperature"],
            seed=params["seed"],
            stop_ids=tuple(params["stop_token_ids"]),
            suppressed_ids=tuple(int(token) for token, bias in params["logit_bias"].items() if bias <= -100),
        )
        engine = await self._engine_of(body["model"])
        version, sampled = self.label, await engine.generate(Prompt(tuple(prompt), images), sampling)
        content = [
            {"token_id": token, "logprob": logprob}
            for token, logprob in zip(sampled.response_ids, sampled.logprobs, strict=True)
        ]
        spans = [{"version": version, "start": 0, "end": len(content)}]
        choice = {"index": 0, "token_ids": list(sampled.response_ids), "finish_reason": sampled.finish_reason}
        choice |= {"weight_versions": spans, "logprobs": {"content": content}}
        return {"model": body["model"], "prompt_token_ids": prompt, "choices": [choice]}

    async def load(self, path: str) -> None:
        """Read new weights; running requests end first."""
        self._updates += 1
        await self.engine.update_weights(path, self._updates)

    async def close(self) -> None:
        """End all engines."""
        for engine in (self.engine, *self._adapted.values()):
            await engine.close()
        self._scratch.cleanup()

    def _serve(self, model: str | Path) -> TransformersEngine:
        return TransformersEngine(model, threads=1, max_batch=int(self._options.max_num_seqs or 16))

    async def _engine_of(self, name: str) -> TransformersEngine:
        """The engine of an adapter, merged into the weights when it is first asked; else that of the weights."""
        if name not in self.adapters:
            return self.engine
        async with self._merging:
            for gone in self._adapted.keys() - self.adapters.keys():
                await self._adapted.pop(gone).close()
            if name not in self._adapted:
                self._adapted[name] = self._serve(await asyncio.to_thread(self._merged, self.adapters[name]))
        return self._adapted[name]

    def _merged(self, adapter: str) -> Path:
        from peft import PeftModel  # takes seconds, which a server without adapters need not wait
        from transformers import AutoModelForImageTextToText

        target = Path(tempfile.mkdtemp(dir=self._scratch.name))
        shutil.copytree(self._options.model, target, dirs_exist_ok=True)
        whole = AutoModelForImageTextToText.from_pretrained(self._options.model)
        PeftModel.from_pretrained(whole, adapter).merge_and_unload().save_pretrained(target)
        return target


async def serve(options: Namespace) -> None:
    """Serve until told to end."""
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    server = ServedModel(options)
    async with server.serving(int(options.port)):
        await ended.wait()
    await server.close()


def main() -> None:
    """Entry point."""
    if sys.argv[1:2] != ["serve"]:
        sys.exit(f"usage: vllm serve MODEL, not {sys.argv[1:]}")
    options = strict_parser().parse_args(sys.argv[2:])
    seen = {name: os.environ.get(name, "") for name in ("CUDA_VISIBLE_DEVICES", "PYTHONPATH")}
    with open(os.environ["DART_FAKED_VLLM"], "a", encoding="utf-8") as file:
        file.write(json.dumps({"argv": sys.argv[1:], **seen}) + "\n")
    asyncio.run(serve(options))


if __name__ == "__main__":
    main()
