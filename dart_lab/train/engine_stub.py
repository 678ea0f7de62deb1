"""Stand-ins for vLLM servers in a process of their own: their routes over HTTP, a 7B model's latencies, no model.

Each listens on a port of its own and is as slow as `dart_lab.efficiency.workload.ModelTimes` says: it reads what is new
of a prompt, and samples the slower the more requests it has; new weights take as long as they do there. Its responses
are a thought of about a hundred tokens and a click: into a corner, and with the last step into one of a fake task's
cells.

Invariants:
    - An answer is as honest as vLLM's: the prompt's ids with the pads of the images that it was sent, a number for each
      sampled id, the label of the weights.
    - What it keeps is bounded: the sizes of the images sent last, by name; a name that it does not know it refuses.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import random
import signal
from collections import OrderedDict

from aiohttp import web

from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_gym.utils.processes import follow_parent
from dart_lab.efficiency.workload import ModelTimes
from dart_lab.gym.own_processes import module_command, own_environment

GENERATE = "/inference/v1/generate"
KEPT_IMAGES = 20_000
THOUGHT = 90  # tokens
HEAD = 44  # characters of base64 that hold the size of a PNG
COLUMNS, ROWS = (42, 126), (37, 112, 187)  # middles of the cells of a fake task, in pixels of its 168x224 screen
LOADS = 'vllm:num_requests_running{engine="0"} %d\nvllm:num_requests_waiting{engine="0"} 0\n'


class EngineStub:
    """One server.

    Args:
        tokens: of the model.
        vision: of the model.
        times: its latencies; None answers at once.
        steps: of an episode: its last one clicks into a cell.
        seed: of what it says.
    """

    def __init__(
        self, tokens: ModelTokens, vision: VisionSpec, times: ModelTimes | None, *, steps: int, seed: int
    ) -> None:
        self._tokens = tokens
        self._vision = vision
        self._times = times
        self._steps = steps
        self._rng = random.Random(seed)
        self._images: OrderedDict[str, int] = OrderedDict()  # tokens by name
        self._label, self._in_flight = "default", 0
        corner = "Action: click(start_box='(2,2)')"
        cells = [f"Action: click(start_box='({x},{y})')" for x in COLUMNS for y in ROWS]
        self._corner, self._cells = tokens.response(corner), [tokens.response(cell) for cell in cells]
        words = tokens.encode("I look for the button that the task names. " * THOUGHT)[:THOUGHT]
        self._thought = [*tokens.encode("Thought: "), *words, *tokens.encode("\n")]

    def application(self) -> web.Application:
        """Its routes."""
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post(GENERATE, self._generate)
        app.router.add_route("*", "/{path:.*}", self._steer)
        return app

    async def _steer(self, request: web.Request) -> web.Response:
        """The routes besides generating."""
        body = await request.json() if request.can_read_body else {}
        match request.path:
            case "/v1/models":
                return web.json_response({"data": [{"id": "policy"}]})
            case "/metrics":
                return web.Response(text=LOADS % self._in_flight)
            case "/weight_info":
                return web.json_response({"weight_version": self._label})
            case "/update_weight_version":
                self._label = body["new_version"]
            case "/collective_rpc" if self._times is not None:
                await asyncio.sleep(self._times.update_s)
        return web.json_response({"status": "ok"})

    async def _generate(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        counts = []
        read = 0.0
        for index, part in enumerate(body.get("content_parts", ())):
            if url := part.get("url", ""):
                read += 1
                self._images[part.get("uuid", "")] = self._count(url)
                if len(self._images) > KEPT_IMAGES:
                    self._images.popitem(last=False)
            name = part.get("uuid", "")
            if name not in self._images:
                message = f"Cache miss for image at index {index} but data is not provided."
                return web.json_response({"error": {"message": message}}, status=400)
            counts.append(self._images[name])
        prompt = self._expanded(body["token_ids"], counts)
        only = body["sampling_params"].get("allowed_token_ids")
        said = only or self._response(len(counts))
        logprob = 0.0 if only else -0.5  # what is the only choice is certain
        if self._times is not None:
            await self._compute(read, read / max(1, len(counts)) * len(prompt), len(said))
        choice = {
            "token_ids": said,
            "logprobs": {"content": [{"logprob": logprob}] * len(said)},
            "finish_reason": "stop",
            "weight_versions": [{"version": self._label}],
        }
        return web.json_response({"model": body["model"], "prompt_token_ids": prompt, "choices": [choice]})

    def _response(self, images: int) -> list[int]:
        act = self._corner if images < self._steps else self._rng.choice(self._cells)
        return [*self._thought, *act]

    async def _compute(self, images: float, prompt_tokens: float, tokens: int) -> None:
        times = self._times or ModelTimes()
        self._in_flight += 1
        try:
            token_s = times.token_s + times.token_s_per_request * self._in_flight
            reading = images * times.host_s_per_image + prompt_tokens / times.prefill_tokens_per_s
            await asyncio.sleep(reading + tokens * token_s)
        finally:
            self._in_flight -= 1

    def _count(self, url: str) -> int:
        """Tokens of an image, by the head of its PNG."""
        start = url.index(",") + 1
        head = base64.b64decode(url[start : start + HEAD])
        width, height = int.from_bytes(head[16:20]), int.from_bytes(head[20:24])
        _, rows, columns = self._vision.grid_of(height, width)
        return rows * columns // self._vision.merge_size**2

    def _expanded(self, ids: list[int], counts: list[int]) -> list[int]:
        prompt: list[int] = []
        start = 0
        for count in counts:
            pad = ids.index(self._tokens.image_pad_id, start)
            prompt += ids[start:pad]
            prompt += [self._tokens.image_pad_id] * count
            start = pad + 1
        return prompt + ids[start:]


async def serve(model_dir: str, engines: int, times: ModelTimes | None, steps: int) -> None:
    """Serve until SIGTERM; says the URLs in a line of JSON."""
    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    tokens = ModelTokens.load(model_dir)
    vision = VisionSpec.from_dir(model_dir)
    urls = []
    runners = []
    for seed in range(engines):
        stub = EngineStub(tokens, vision, times, steps=steps, seed=seed)
        runners.append(web.AppRunner(stub.application(), access_log=None))
        await runners[-1].setup()
        await web.TCPSite(runners[-1], "127.0.0.1", 0).start()
        urls.append(f"http://127.0.0.1:{runners[-1].addresses[0][1]}")
    print(json.dumps(urls), flush=True)
    await ending.wait()
    await asyncio.gather(*(runner.cleanup() for runner in runners))


class StubProcess:
    """The process. Use as an async context manager, which gives the servers' URLs.

    Args:
        model_dir: tokenizer and image processing.
        engines: how many servers.
        latency: whether they are as slow as a 7B model; else they answer at once.
        steps: of an episode.
    """

    def __init__(self, model_dir: str, engines: int = 1, *, latency: bool = False, steps: int = 2) -> None:
        self._command = module_command(__name__, model_dir, str(engines), str(int(latency)), str(steps))
        self._process: asyncio.subprocess.Process

    async def __aenter__(self) -> list[str]:
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdout=asyncio.subprocess.PIPE, env=own_environment()
        )
        assert self._process.stdout is not None  # a pipe was asked for
        async with asyncio.timeout(120.0):
            return json.loads(await self._process.stdout.readline())

    async def __aexit__(self, *exc: object) -> None:
        if self._process.returncode is None:
            self._process.terminate()
        await self._process.wait()


def main() -> None:
    """The process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model_dir")
    for name in ("engines", "latency", "steps"):
        parser.add_argument(name, type=int)
    arguments = parser.parse_args()
    follow_parent()
    times = ModelTimes() if arguments.latency else None
    asyncio.run(serve(arguments.model_dir, arguments.engines, times, arguments.steps))


if __name__ == "__main__":
    main()
