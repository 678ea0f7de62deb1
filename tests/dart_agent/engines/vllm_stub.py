"""A stand-in for a vLLM server: its routes over real HTTP, a deterministic model, and faults on demand."""

import asyncio
import base64
import contextlib
import io
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import numpy as np
from aiohttp import web
from PIL import Image

from dart_agent.engines.base.engine import EngineError
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens

Change = Callable[[dict[str, Any]], Any]
STREAM_ROUTES = (
    "/get_world_size", "/init_weight_transfer_engine", "/start_weight_update", "/update_weights",
    "/finish_weight_update", "/shutdown_weight_transfer_engine",
)  # fmt: skip


class StreamReceiver(Protocol):
    """The workers behind the routes of a weight transfer; they run in threads and raise RuntimeError."""

    workers: int

    def meet(self, init_info: dict[str, Any]) -> None:
        """Join the sender."""

    def receive(self, update_info: dict[str, Any]) -> None:
        """Take the tensors."""

    def leave(self) -> None:
        """Leave the sender."""


class VLLMStub:
    """The state of the server. Tests set its attributes.

    Attributes:
        requests: (route, body) of all requests.
        scale_out: whether the generate route is offered.
        dev: whether the control routes are.
        changes: each is applied to the next answer of a generating route; it may return a response of its own.
        abort_after: the next answers are cut after so many tokens, as by a pause in mode "abort".
        paused: 503 for every request.
        hold: requests wait for it.
        raw: whether log-probabilities are those before forbidden tokens.
        loads: paths of `reload_weights` that succeed; None for all.
        mortal: whether it ends after a load that failed, as vLLM 0.32 does; `dead` says that it did.
        fixed: what the model says, then it ends.
        receiver: takes streamed weights; without it the server knows no weight transfer.
        failing: steering routes that answer 500.
        broken: generating routes do.
        images: the images that it has seen, by their names.
        images_kept: how many of them it keeps at the beginning of a request; None for all.
        refusal: what it says of one that it does not have; "" for vLLM's words.
        load_told: what its metrics say of waiting requests; "" for no metrics.
        lora: whether adapters can be loaded; their names are among `models`.
        adapters: directories of the loaded ones, by name.
    """

    def __init__(self, tokens: ModelTokens, vision: VisionSpec) -> None:
        self.tokens, self.vision = tokens, vision
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.scale_out = self.dev = True
        self.changes: list[Change] = []
        self.abort_after: list[int] = []
        self.paused = self.raw = self.mortal = self.dead = False
        self.hold: asyncio.Event | None = None
        self.models = ["policy"]
        self.lora = False
        self.adapters: dict[str, str] = {}
        self.label = "default"
        self.loads: set[str] | None = None
        self.key = ""
        self.fixed = tuple(tokens.response("Action: wait()"))
        self.calls: list[str] = []
        self.receiver: StreamReceiver | None = None
        self.failing: set[str] = set()
        self.broken = False
        self.images: dict[str, np.ndarray] = {}
        self.images_kept: int | None = None
        self.refusal = self.load_told = ""

    @contextlib.asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[str]:
        """Listen on loopback; yields the URL."""
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", port)
            await site.start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            if self.hold is not None:
                self.hold.set()
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if self.dead:
            assert request.transport is not None
            request.transport.abort()
        path = f"/{request.match_info['path']}"
        body = await request.json() if request.can_read_body else {}
        self.requests.append((path, body))
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        if path in ("/inference/v1/generate", "/v1/chat/completions"):
            return await self._generate(path, body)
        if path == "/v1/models":
            return web.json_response({"data": [{"id": name} for name in self.models]})
        if path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter") and self.lora:
            return self._adapt(path, body)
        if path == "/metrics" and self.load_told:
            told = f'vllm:num_requests_waiting{{engine="0"}} {self.load_told}\n'
            return web.Response(text=told * 2)
        if path == "/health":
            return web.Response()
        if path in STREAM_ROUTES and self.dev:
            return await self._stream(path, body)
        return await self._steer(path, dict(request.query), body)

    def _adapt(self, path: str, body: dict[str, Any]) -> web.Response:
        """The routes of adapters, with vLLM's own words."""
        name, known = body["lora_name"], body["lora_name"] in self.models
        if path == "/v1/unload_lora_adapter":
            if not known:
                return web.json_response(
                    {"error": {"message": f"The lora adapter '{name}' cannot be found."}}, status=404
                )
            self.models.remove(name)
            self.adapters.pop(name, None)  # tests name some that nobody loaded
            return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")
        if known:
            message = f"The lora adapter '{name}' has already been loaded."
            return web.json_response({"error": {"message": message}}, status=400)
        if self.loads is not None and body["lora_path"] not in self.loads:
            message = f"Loading lora {name} failed: No adapter found for {body['lora_path']}"
            return web.json_response({"error": {"message": message}}, status=404)
        self.models.append(name)
        self.adapters[name] = body["lora_path"]
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def _stream(self, path: str, body: dict[str, Any]) -> web.Response:
        """The routes of a weight transfer, which answer when the workers have done their part."""
        self.calls.append(path)
        if self.receiver is None or path in self.failing:
            return web.json_response({"error": {"message": "Weight transfer not configured."}}, status=500)
        try:
            match path:
                case "/get_world_size":
                    return web.json_response({"world_size": self.receiver.workers})
                case "/init_weight_transfer_engine":
                    await asyncio.to_thread(self.receiver.meet, body["init_info"])
                case "/update_weights":
                    await asyncio.to_thread(self.receiver.receive, body["update_info"])
                case "/shutdown_weight_transfer_engine":
                    self.receiver.leave()
                case "/finish_weight_update":
                    self.label = body["weight_version"]
        except RuntimeError as error:
            return web.json_response({"error": {"message": str(error)}}, status=500)
        return web.json_response({"message": "done"})

    async def _steer(self, path: str, query: dict[str, str], body: dict[str, Any]) -> web.Response:
        if not self.dev:
            return web.json_response({"detail": "Not Found"}, status=404)
        self.calls.append(path + (f"?{query['mode']}" if "mode" in query else ""))
        match path:
            case "/pause" | "/resume":
                self.paused = path == "/pause"
            case "/weight_info":
                return web.json_response({"weight_version": self.label})
            case "/update_weight_version":
                self.label = body["new_version"]
            case "/collective_rpc":
                try:
                    await self.load(body["kwargs"]["weights_path"])
                except (RuntimeError, EngineError) as error:
                    self.dead = self.mortal
                    return web.json_response({"error": {"message": str(error)}}, status=500)
            case "/reset_prefix_cache" | "/reset_mm_cache" | "/reset_encoder_cache":
                pass
            case _:
                return web.json_response({"detail": "Not Found"}, status=404)
        return web.json_response({"status": "ok"})

    async def _generate(self, path: str, body: dict[str, Any]) -> web.StreamResponse:
        if path == "/inference/v1/generate" and not self.scale_out:
            return web.json_response({"error": {"message": "needs --enable-scale-out"}}, status=403)
        if self.broken:
            return web.json_response({"error": {"message": "EngineCore encountered an issue"}}, status=500)
        if self.hold is not None:
            await self.hold.wait()
        if self.paused:
            return web.json_response({"error": {"message": "the engine is paused"}}, status=503)
        if body["model"] not in self.models:
            message = f"The model `{body['model']}` does not exist."
            return web.json_response({"error": {"message": message}}, status=404)
        if (only := body.get("sampling_params", body).get("allowed_token_ids")) is not None:
            return web.json_response(self._only(path, body, only))
        parts = [] if self.images_kept is None else body.get("content_parts", [])
        while len(self.images) > (self.images_kept or 0) and self.images_kept is not None:
            self.images.pop(next(iter(self.images)))
        for index, part in enumerate(parts):
            if "url" not in part and part["uuid"] not in self.images:
                message = self.refusal or f"Cache miss for image at index {index} but data is not provided."
                return web.json_response({"error": {"message": message}}, status=400)
        answer = await self.reply(path, body)
        if self.changes:
            changed = self.changes.pop(0)(answer)
            if isinstance(changed, web.StreamResponse):
                return changed
        return web.json_response(answer)

    async def reply(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """What is answered; for another model than `answer`'s."""
        return self.answer(path, body)

    async def load(self, path: str) -> None:
        """Read weights; raises RuntimeError where there are none."""
        if self.loads is not None and path not in self.loads:
            raise RuntimeError(f"no weights in {path}")

    def _only(self, path: str, body: dict[str, Any], allowed: list[int]) -> dict[str, Any]:
        """The answer where a single token is allowed."""
        answer = self.answer(path, body)
        logprobs = {"content": [{"token_id": allowed[0], "logprob": -6.5 if self.raw else 0.0}]}
        answer["choices"][0] |= {"token_ids": allowed, "logprobs": logprobs}
        return answer

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """What an honest server says: `fixed`, or what is left of it after what the prompt ends with."""
        chat = path == "/v1/chat/completions"
        prompt = self.rendered(body["messages"]) if chat else self._expanded(body)
        params = body if chat else body["sampling_params"]
        said = next(n for n in range(len(self.fixed), -1, -1) if prompt[len(prompt) - n :] == list(self.fixed[:n]))
        sampled = list(self.fixed[said:])[: params["max_tokens"]]
        reason = "stop" if sampled and sampled[-1] in params["stop_token_ids"] else "length"
        if self.abort_after:
            sampled, reason = sampled[: self.abort_after.pop(0)], "abort"
        content = [{"token_id": token, "logprob": -0.25 * (1 + index)} for index, token in enumerate(sampled, said)]
        for entry in content if (told := params["top_logprobs" if chat else "logprobs"]) else ():
            others = [{"token_id": -1, "logprob": -2.0 - place} for place in range(told - 1)]
            entry["top_logprobs"] = [dict(entry), *others]
        spans = [{"version": self.label, "start": 0, "end": len(sampled)}] if sampled else None
        choice = {"index": 0, "token_ids": sampled, "finish_reason": reason, "weight_versions": spans}
        choice["logprobs"] = {"content": content}
        found = {"model": body["model"], "prompt_token_ids": prompt, "choices": [choice]}
        if not chat and params.get("prompt_logprobs") is not None:
            found["prompt_logprobs"] = [None, *({str(token): {"logprob": -0.01 * token}} for token in prompt[1:])]
        return found

    def _expanded(self, body: dict[str, Any]) -> list[int]:
        images = iter(body.get("content_parts") or [])
        prompt: list[int] = []
        for token in body["token_ids"]:
            is_pad = token == self.tokens.image_pad_id
            prompt += [token] * (self.vision.num_tokens(self._image(next(images))) if is_pad else 1)
        assert next(images, None) is None
        return prompt

    def _image(self, part: dict[str, Any]) -> np.ndarray:
        """The pixels of an image; it is kept by its name."""
        if "url" in part:
            self.images[part["uuid"]] = pixels(part["url"])
        return self.images[part["uuid"]]

    def rendered(self, messages: list[dict[str, Any]]) -> list[int]:
        """The tiny model's chat template."""
        text, begun = "", messages[-1]["role"] == "assistant"
        for message in messages:
            parts = message["content"]
            parts = [{"type": "text", "text": parts}] if isinstance(parts, str) else parts
            text += f"<|im_start|>{message['role']}\n"
            for part in parts:
                if part["type"] == "text":
                    text += part["text"]
                else:
                    count = self.vision.num_tokens(pixels(part["image_url"]["url"]))
                    text += f"<|vision_start|>{'<|image_pad|>' * count}<|vision_end|>"
            text += "<|im_end|>\n"
        if begun:  # continue_final_message: what the model wrote goes on
            return self.tokens.encode_markup(text.removesuffix("<|im_end|>\n"))
        return self.tokens.encode_markup(text + "<|im_start|>assistant\n")


def pixels(url: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))))


def runs(token_ids: list[int], token: int) -> list[int]:
    """Lengths of the runs of a token."""
    return [len(list(group)) for key, group in itertools.groupby(token_ids) if key == token]
