"""VLLMEngine: an `Engine` behind a vLLM server: token ids in, token ids and log-probabilities out, over HTTP.

Start the server with `--enable-scale-out --logprobs-mode processed_logprobs --generation-config vllm` and, for weight
updates, `VLLM_SERVER_DEV_MODE=1`; docs/guides/engines.md has the whole command. Needs neither torch nor vLLM here.

Invariants:
    - What `generate` returns was sampled to exactly the given prompt: ids are compared, numbers looked at. A reply that
      fails a check is an error, never a Generation.
    - A response that an update cut off is continued from its sampled ids on the new weights; its version is then the
      span of both, and every log-probability belongs to the weights that sampled the token. Where the chat route cannot
      continue it, because the server reads the text of those ids as other ids, the response is begun again on the new
      weights.
    - Before the first response for training, the server shows which log-probabilities it returns.
    - `update_weights` returns only when the server says that it serves the version, and always lets it go on.
    - A LoRA adapter is loaded beside what is served, under a name of its own, without a pause: requests that run are
      answered by the version that they asked for, and no server ever serves a half of one.
"""

import asyncio
import dataclasses
import logging
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal

from dart_agent.engines.base.engine import (
    EngineBusy,
    EngineError,
    EngineInfo,
    EngineMismatch,
    EngineTimeout,
    Generation,
    Prompt,
    RequestRefused,
    Sampling,
)
from dart_agent.engines.http.http_server import RouteMissing
from dart_agent.engines.http.image_encoding import ENCODER
from dart_agent.engines.vllm import vllm_wire as wire
from dart_agent.engines.vllm.adapter_names import KEPT_ADAPTERS, adapter_name, adapter_versions
from dart_agent.engines.vllm.server_images import ServerImages
from dart_agent.engines.vllm.vllm_control import PauseMode, ServerLoad, VLLMControl
from dart_agent.engines.vllm.weight_loading import FromFiles, WeightLoading
from dart_agent.models.model_directory import adapter_base
from dart_agent.models.model_tokens import ModelTokens
from dart_gym.utils.backoff import Pauses

_log = logging.getLogger(__name__)
GENERATE_ROUTE, CHAT_ROUTE = "/inference/v1/generate", "/v1/chat/completions"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0


class VLLMEngine:
    """An `Engine` served by vLLM. Use it within one event loop."""

    def __init__(
        self,
        url: str,
        model_dir: str | Path,
        *,
        model: str = "policy",
        name: str = "",
        version: int = 0,
        route: Literal["auto", "generate", "chat"] = "auto",
        timeout_s: float = 120.0,
        update_timeout_s: float = 600.0,
        pause: PauseMode = "keep",
        loading: WeightLoading | None = None,
        adapters: bool = False,
        key: str | None = None,
    ) -> None:
        """Remember where the server is; the first call connects.

        Args:
            url: such as "http://127.0.0.1:8000".
            model_dir: the model's tokenizer and processor files (no weights are needed here).
            model: what the server calls it (`--served-model-name`).
            name: what results carry as `Generation.engine`; "" for the URL.
            version: version of the weights that the server was started with.
            route: "generate" takes token ids as they are; "chat" has the server tokenise messages, and fails where
                its ids are others; "auto" takes "generate" where the server offers it.
            timeout_s: most seconds for one response, waiting for a paused or busy server included.
            update_timeout_s: most seconds for one update of the weights.
            pause: what an update does to running requests; see `VLLMControl.pause`.
            loading: how weights get into the server; None for the server reading their files.
            adapters: whether new versions are LoRA adapters beside the server's weights (`--enable-lora`).
            key: API key; None takes it from the environment (`VLLM_API_KEY`).
        """
        self.control = VLLMControl(url, key=key)
        self._tokens = ModelTokens.load(model_dir)
        self._model, self._name = model, name or self.control.url
        self._loading = loading or FromFiles()
        self._adapters = adapters
        self._adapter: int | None = None  # version of the adapter that requests ask for; None for the server's weights
        self._first_version = self._version = version
        self._route = {"generate": GENERATE_ROUTE, "chat": CHAT_ROUTE}.get(route)
        self._timeout = timeout_s
        self._update_timeout = update_timeout_s
        self._pause = pause
        self._probed, self._probing = False, asyncio.Lock()
        self._images = ServerImages()
        self._in_flight = self._requests = self._generated = 0
        self._busy_s, self._busy_since = 0.0, 0.0

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """Sample one response; a server that is paused or busy is asked again until the time is over.

        Raises:
            EngineTimeout: it took longer than `timeout_s`.
            EngineBusy: it was paused or busy all the time.
            EngineMismatch: it answered about another prompt, model or version, or with invalid numbers.
            RequestRefused: it will not serve this request.
            BadResponse: the model wrote what no response can hold.
            EngineError: it could not be reached, or failed.
        """
        if not prompt.token_ids or sampling.max_tokens < 1:
            raise RequestRefused("a request needs a prompt and max_tokens of at least 1")
        started = time.monotonic()
        if sampling.given_ids:
            return await self._score(prompt, sampling, started + self._timeout)
        if self._in_flight == 0:
            self._busy_since = started
        self._in_flight += 1
        try:
            parts, version = await self._collect(prompt, sampling, started + self._timeout)
        finally:
            self._in_flight -= 1
            if self._in_flight == 0:
                self._busy_s += time.monotonic() - self._busy_since
        response_ids = tuple(token_id for part in parts for token_id in part.response_ids)
        entropies = [entropy for part in parts for entropy in part.entropies]
        self._requests += 1
        self._generated += len(response_ids)
        return Generation(
            text=self._tokens.decode(response_ids),
            response_ids=response_ids,
            logprobs=tuple(logprob for part in parts for logprob in part.logprobs),
            version=version,
            finish_reason="stop" if parts[-1].finish_reason == "stop" else "length",
            engine=self._name,
            seconds=(0.0, time.monotonic() - started),
            entropy=sum(entropies) / len(entropies) if entropies and len(entropies) == len(response_ids) else None,
            routing=b"".join(part.routing for part in parts) if sampling.routing else b"",
        )

    async def update_weights(self, path: str, version: int) -> None:
        """Load a checkpoint that the server can read at `path`. Raises `EngineError`.

        With a sender (`weight_loading`) the directory must be readable here, and not for the server. After an error the
        server may hold a mixture of old and new weights: update it again, or restart it.
        """
        try:
            async with asyncio.timeout(self._update_timeout):
                await self._replace_weights(path, version)
        except TimeoutError:
            raise EngineTimeout(f"{self._name} did not load {path} within {self._update_timeout:.0f} s") from None

    async def info(self) -> EngineInfo:
        """Current state, as the server and this client know it. Raises `EngineError`."""
        models = await self.control.models()
        if self._model not in models:
            raise EngineMismatch(
                f"{self._name} serves {', '.join(models) or 'nothing'}, not {self._model!r}: give the engine that "
                f"name, or start the server with --served-model-name {self._model}"
            )
        version, load = await asyncio.gather(self._served_version(models), self._load())
        self._version = max(self._version, version)  # another client may have updated it
        return EngineInfo(
            name=self._name,
            model=self._model,
            version=version,
            in_flight=self._in_flight,
            busy_s=self._busy_s + (time.monotonic() - self._busy_since if self._in_flight else 0.0),
            requests=self._requests,
            tokens=self._generated,
            waiting=load.waiting,
            kv_use=load.kv_use,
        )

    async def close(self) -> None:
        """Close the connections. Idempotent. The server goes on."""
        await self.control.close()

    # --- generating ---------------------------------------------------------------------------------------------

    async def _score(self, prompt: Prompt, sampling: Sampling, deadline: float) -> Generation:
        """The given response with its log-probabilities: those of a prompt that ends with it.

        The server computes them before temperature and forbidden tokens, whatever `--logprobs-mode` says.
        """
        if sampling.temperature != 1.0 or self._route == CHAT_ROUTE:
            raise RequestRefused(
                f"{self._name} says how likely given tokens are at temperature 1 and by its generate route only: set "
                "rollout.sampling.temperature to 1, and start the server with --enable-scale-out"
            )
        whole = dataclasses.replace(prompt, token_ids=prompt.token_ids + sampling.given_ids)
        one = Sampling(1, stop_ids=sampling.stop_ids)
        body = wire.generate_body(whole, one, self._tokens, model=self._asked, cache_salt=f"v{self._version}")
        body["sampling_params"] |= {"prompt_logprobs": 0}
        pauses, started = Pauses(deadline, FIRST_PAUSE_S, LONGEST_PAUSE_S), time.monotonic()
        while True:
            try:
                data = await self._post_images(body, prompt, deadline - time.monotonic())
                break
            except EngineBusy as busy:
                await pauses.wait(busy)
            except RouteMissing as error:
                raise RouteMissing(f"{error}; start the server with --enable-scale-out") from error
        return Generation(
            text=self._tokens.decode(sampling.given_ids),
            response_ids=sampling.given_ids,
            logprobs=wire.read_scores(data, whole, sampling.given_ids),
            version=(self._version, self._version),
            finish_reason="stop" if sampling.given_ids[-1] in sampling.stop_ids else "length",
            engine=self._name,
            seconds=(0.0, time.monotonic() - started),
        )

    async def _collect(
        self, prompt: Prompt, sampling: Sampling, deadline: float
    ) -> tuple[list[wire.Answer], tuple[int, int]]:
        """The parts of one response (more than one where it was cut off) and the versions that made it."""
        parts: list[wire.Answer] = []
        versions: list[int] = []
        rest, left = prompt, sampling
        pauses = Pauses(deadline, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            begun = len(rest.token_ids) - len(prompt.token_ids)
            try:
                answer, made_by = await self._answer(rest, left, deadline - time.monotonic(), begun)
            except EngineBusy as busy:
                await pauses.wait(busy)
                continue
            except (wire.OtherPrompt, RequestRefused):
                if not begun or self._route == GENERATE_ROUTE:
                    raise
                _log.info("%s cannot continue a response that was cut off: it is begun again", self._name)
                parts = []
                versions = []
                rest = prompt
                left = sampling
                continue
            versions += made_by
            parts.append(answer)
            rest, left = continued(prompt, sampling, parts)
            if answer.finish_reason != "abort" or left.max_tokens < 1:
                return parts, (min(versions), max(versions))
            late = EngineBusy(f"{self._name} aborted the request again and again for {self._timeout:.0f} s")
            await pauses.wait(late, f"{self._name} aborted the request")

    async def _answer(
        self, prompt: Prompt, sampling: Sampling, timeout_s: float, begun: int
    ) -> tuple[wire.Answer, list[int]]:
        """One checked answer and the versions that made it; the prompt's last `begun` ids were sampled before."""
        if sampling.training:
            await self._probe(timeout_s)
        floor, model = self._version, self._asked
        adapted = self._adapter
        answer = wire.read_answer(await self._post(prompt, sampling, timeout_s, begun=begun))
        wire.check_answer(answer, prompt, sampling, model=model)
        if adapted is not None:  # labels are those of the weights under it
            versions = [adapted] if answer.response_ids else []
        elif answer.versions:
            versions = [wire.version_number(label, self._first_version) for label in answer.versions]
        elif answer.response_ids:  # the server does not say: some version between the one before and the one now
            versions = [floor, await self._served_version()]
        else:
            versions = []
        if versions and min(versions) < floor:
            raise EngineMismatch(
                f"{self._name} sampled with version {min(versions)}, but serves {floor} since its last update: it was "
                "restarted with older weights, or another process updates it; update its weights again"
            )
        return answer, versions

    async def _probe(self, timeout_s: float) -> None:
        """Have the server show, once, what its log-probabilities are."""
        async with self._probing:
            if self._probed:
                return
            prompt, sampling, more = wire.probe(self._tokens)
            wire.check_probe(wire.read_answer(await self._post(prompt, sampling, timeout_s, more)))
            self._probed = True

    async def _post(
        self,
        prompt: Prompt,
        sampling: Sampling,
        timeout_s: float,
        more: dict[str, Any] | None = None,
        begun: int = 0,
    ) -> object:
        """Send a request over the route that the server offers."""
        model, salt = self._asked, f"v{self._version}"  # keys and values of other versions are not reused
        if self._route != CHAT_ROUTE:
            body = wire.generate_body(prompt, sampling, self._tokens, model=model, cache_salt=salt)
            body["sampling_params"] |= more or {}
            try:
                return await self._post_images(body, prompt, timeout_s)
            except RouteMissing as error:
                if self._route is not None:
                    raise RouteMissing(f"{error}; start the server with --enable-scale-out") from error
                self._route = CHAT_ROUTE
        urls = [image.url for image in await ENCODER.encode(prompt.images)]
        body = wire.chat_body(prompt, sampling, self._tokens, urls, model=model, cache_salt=salt, begun=begun) | (
            more or {}
        )
        return await self.control.ask("POST", CHAT_ROUTE, json=body, timeout_s=timeout_s)

    async def _post_images(self, body: dict[str, Any], prompt: Prompt, timeout_s: float) -> object:
        """Send a request with the images that the server lacks, and with all where it turns out to lack others."""
        deadline = time.monotonic() + timeout_s
        images = await ENCODER.encode(prompt.images, unneeded=self._images)
        names, refusal = [image.name for image in images], ""
        while True:
            content, left_s = wire.with_images(body, images), deadline - time.monotonic()
            try:
                data = await self.control.ask("POST", GENERATE_ROUTE, content=content, timeout_s=left_s)
            except RequestRefused as error:
                if all(image.base64 for image in images):
                    raise
                refusal, images = str(error), await ENCODER.encode(prompt.images)
            else:
                if refusal:
                    self._images.missed(names, refusal)
                self._images.answered(names)
                return data

    # --- weights ------------------------------------------------------------------------------------------------

    @property
    def _asked(self) -> str:
        """Return what the next request names as its model."""
        return self._model if self._adapter is None else adapter_name(self._model, self._adapter)

    async def _served_version(self, models: Sequence[str] = ()) -> int:
        """The version that the server names; ours where it has no such route (it then cannot be updated either)."""
        if self._adapters and (loaded := adapter_versions(self._model, models)):
            self._adapter = loaded[-1]
            return loaded[-1]
        try:
            return wire.version_number(await self.control.weight_info(), self._first_version)
        except RouteMissing:
            return self._version

    async def _load(self) -> ServerLoad:
        try:
            return await self.control.load()
        except (RouteMissing, RequestRefused):  # metrics are switched off or kept from us
            return ServerLoad()

    async def _replace_weights(self, path: str, version: int) -> None:
        if self._adapters and adapter_base(path) is not None:
            await self._add_adapter(path, version)
            return
        if self._adapters:  # an adapter does not belong to other weights than those that it was trained on
            await self._keep_adapters(())
            self._adapter = None
        async with self._loading.ready(self.control, path, self._update_timeout) as load:
            await self.control.pause(self._pause, timeout_s=self._update_timeout)
            failure: EngineError | None = None
            try:
                await load(str(version))
                await self.control.reset_prefix_cache()
            except EngineError as error:
                failure = error
            finally:
                try:
                    await self.control.resume()
                except EngineError as error:
                    failure = failure or error
            if failure is not None:
                raise EngineError(
                    f"{self._name} could not load {path}: {failure}. {self._loading.hint} Restart the server: it may "
                    "hold a part of the new weights (vLLM 0.32 ends itself after a load that failed)"
                ) from failure
        self._images.forget()
        served = await self._served_version()
        if served != version:
            raise EngineMismatch(f"{self._name} says version {served} after an update to {version}")
        self._version = version

    async def _add_adapter(self, path: str, version: int) -> None:
        """Serve an adapter as a version, and ask for it from now on."""
        name = adapter_name(self._model, version)
        try:
            loaded = adapter_versions(self._model, await self.control.models())
            if version in loaded:
                await self.control.unload_adapter(name)
            await self.control.load_adapter(name, path, timeout_s=self._update_timeout)
        except EngineError as error:
            raise EngineError(
                f"{self._name} could not load the adapter {path}: {error}. Does the server see this directory, and is "
                "it an adapter of the weights that it was started with?"
            ) from error
        self._adapter = self._version = version
        earlier = [one for one in loaded if one < version]  # a later one is of another run: it would be taken for ours
        await self._keep_adapters((*earlier, version)[-KEPT_ADAPTERS:])

    async def _keep_adapters(self, kept: Collection[int]) -> None:
        """Have the server unload the adapters of all versions but these."""
        for version in adapter_versions(self._model, await self.control.models()):
            if version not in kept:
                await self.control.unload_adapter(adapter_name(self._model, version))


def continued(prompt: Prompt, sampling: Sampling, parts: list[wire.Answer]) -> tuple[Prompt, Sampling]:
    """The request for the rest of a response that was cut off, whose seed moves on with the tokens. Pure."""
    sampled = tuple(token_id for part in parts for token_id in part.response_ids)
    seed = None if sampling.seed is None else (sampling.seed + len(sampled)) % 2**63
    return (
        dataclasses.replace(prompt, token_ids=prompt.token_ids + sampled),
        dataclasses.replace(sampling, max_tokens=sampling.max_tokens - len(sampled), seed=seed),
    )
