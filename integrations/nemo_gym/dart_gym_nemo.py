"""Desktops as an agent server of NeMo Gym: a request names a task, the answer has its score as the reward.

Contract, as that of NeMo Gym's agents for computers: `verifier_metadata` of the request says the episode
(`task`, `seed`, `max_steps`); the answer has `reward`, and `mask_sample` where it is not to be trained on.

Invariants:
    - A request names a task of a suite: no file, address or module of this side.
    - What the model writes is read by an action format; nothing of it runs here.
    - What environment, evaluator or model server lost has `mask_sample`, and why in `fault`.
    - A request holds one desktop from its beginning to its end; if its client goes, the desktop is given back.
"""

from __future__ import annotations

import asyncio
import base64
from contextlib import AsyncExitStack
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from dart_agent.episodes.play import OutcomeOnly, play
from dart_agent.formats import get_format
from dart_agent.policies.policy import Decision, Episode
from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.core.outcomes import Observation, TerminalState
from dart_gym.envs.cluster_link import connect
from dart_gym.utils.png import encode_png

try:
    from fastapi import Body, Request
    from nemo_gym.base_resources_server import BaseRunRequest, BaseVerifyResponse
    from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent
    from nemo_gym.config_types import ModelServerRef
    from nemo_gym.openai_utils import (
        NeMoGymEasyInputMessage,
        NeMoGymResponse,
        NeMoGymResponseCreateParamsNonStreaming,
    )
    from nemo_gym.server_utils import get_response_json, raise_for_status
except ImportError as error:
    raise ImportError("NeMo Gym is not installed; next step: pip install 'nemo-gym>=0.4,<0.5' (Python 3.12)") from error


class DesktopAgentConfig(BaseResponsesAPIAgentConfig):
    """Of a `desktop_agent` in a configuration of NeMo Gym."""

    model_server: ModelServerRef
    action_format: str = Field("computer_13", description="How the model writes actions: `dart_agent.formats`.")
    url: str | None = Field(None, description="The cluster; None for one of this process's own.")
    token_env: str | None = Field(None, description="The environment variable that holds the cluster's token.")


class Asked(BaseModel):
    """What `verifier_metadata` says."""

    task: str = Field(pattern=r"^[\w+-]+(/[\w+-]+)+$")
    seed: int = Field(0, ge=0)
    max_steps: int | None = Field(None, ge=1)


class DesktopRunRequest(BaseRunRequest):
    """A row of the data set."""

    model_config = ConfigDict(extra="allow")
    verifier_metadata: Asked


class DesktopRunResponse(BaseVerifyResponse):
    """An episode: its conversation, its score, and whether to leave it out."""

    model_config = ConfigDict(extra="allow")
    mask_sample: bool = False
    fault: str = ""
    terminal: str = ""


class _Conversation:
    """A policy whose decisions are the model server's replies."""

    def __init__(self, agent: DesktopAgent, asked: NeMoGymResponseCreateParamsNonStreaming) -> None:
        self._agent, self._format = agent, get_format(agent.config.action_format)
        given = asked.input if isinstance(asked.input, list) else [self._message("user", asked.input)]
        self._asked = asked.model_copy(update={"input": [self._message("system", self._format.describe()), *given]})
        self._said = ""
        self.made: list[Any] = []
        self.last: NeMoGymResponse | None = None

    @staticmethod
    def _message(role: Any, content: Any) -> NeMoGymEasyInputMessage:
        return NeMoGymEasyInputMessage(role=role, content=content)

    def reset(self, episode: Episode) -> None:
        """Begin with the instruction."""
        self._said = f"{episode.instruction}\n"

    async def act(self, observation: Observation) -> Decision:
        """Show the screen, read the reply."""
        error = f"The last action failed: {observation.action_error}\n" if observation.action_error else ""
        url = f"data:image/png;base64,{base64.b64encode(encode_png(observation.screenshot)).decode()}"
        image = {"type": "input_image", "image_url": url, "detail": "auto"}
        text = {"type": "input_text", "text": f"{self._said}{error}The screen now:"}
        self._said = ""
        self.made.append(self._message("user", [text, image]))
        asked = self._asked.model_copy(update={"input": [*self._asked.input, *self.made]})
        name = self._agent.config.model_server.name
        reply = await self._agent.server_client.post(server_name=name, url_path="/v1/responses", json=asked)
        if not reply.ok:
            return Decision(error=f"the model server answered {reply.status}", terminal=TerminalState.MODEL_ERROR)
        self.last = NeMoGymResponse.model_validate(await get_response_json(reply))
        self.made.extend(self.last.output)
        height, width = observation.screenshot.shape[:2]
        read = self._format.parse(self.last.output_text, (width, height))
        if read.errors:
            return Decision(error=read.problem, terminal=TerminalState.PARSE_ERROR)
        return Decision(read.actions, self.last.output_text, read.thought)


class DesktopAgent(SimpleResponsesAPIAgent):
    """Plays episodes on desktops."""

    config: DesktopAgentConfig
    _open: AsyncExitStack = PrivateAttr(default_factory=AsyncExitStack)
    _cluster: ClusterClient | None = PrivateAttr(default=None)
    _finding: asyncio.Lock = PrivateAttr(default_factory=asyncio.Lock)

    async def _find_cluster(self) -> ClusterClient:
        async with self._finding:
            if self._cluster is None:
                link = connect(self.config.url, token_env=self.config.token_env)
                self._cluster = await self._open.enter_async_context(link)
            return self._cluster

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        """One reply of the model, without a desktop."""
        reply = await self.server_client.post(
            server_name=self.config.model_server.name, url_path="/v1/responses", json=body
        )
        await raise_for_status(reply)
        return NeMoGymResponse.model_validate(await get_response_json(reply))

    async def run(self, request: Request, body: DesktopRunRequest) -> DesktopRunResponse:
        """Play an episode; who asks and goes away ends it."""
        playing = asyncio.ensure_future(self._play(body))
        gone = asyncio.ensure_future(request.receive())  # its body was read: what comes next is that it has gone
        try:
            await asyncio.wait({playing, gone}, return_when=asyncio.FIRST_COMPLETED)
            return await playing if playing.done() else _empty(body, "the client has gone")
        finally:
            playing.cancel()
            gone.cancel()

    async def _play(self, body: DesktopRunRequest) -> DesktopRunResponse:
        asked, talk = body.verifier_metadata, _Conversation(self, body.responses_create_params)
        async with (await self._find_cluster()).session() as session:
            played = await play(
                talk, session, asked.task, seed=asked.seed, max_steps=asked.max_steps, recorder=OutcomeOnly()
            )
        fault = f"the {played.lost_by} lost the episode: {played.detail}" if played.lost_by else ""
        if talk.last is None:
            return _empty(body, fault)
        whole = talk.last.model_copy(update={"output": talk.made})
        return DesktopRunResponse(
            **body.model_dump(), response=whole, reward=played.score or 0.0,
            mask_sample=bool(fault), fault=fault, terminal=str(played.terminal),
        )  # fmt: skip


def _empty(body: DesktopRunRequest, fault: str) -> DesktopRunResponse:
    """The answer of an episode in which the model said nothing."""
    response = NeMoGymResponse(
        id="none", created_at=0.0, model="", object="response", output=[], parallel_tool_calls=False,
        tool_choice="none", tools=[],
    )  # fmt: skip
    return DesktopRunResponse(**body.model_dump(), response=response, reward=0.0, mask_sample=True, fault=fault)
