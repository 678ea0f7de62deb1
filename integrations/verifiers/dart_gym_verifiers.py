"""Desktops as an environment of verifiers (v1 API): tasks of our suites, their exact scores as the reward.

The environment plays the user of the conversation: each user turn is the screen as an image, each reply of the model is
read by one of our action formats and carried out, until the task ends. With `tools` the model calls the typed actions
as tools instead, whose answers are the screens after them.

Invariants:
    - A turn of the trace is a step of the episode: it holds one screenshot more than the last one.
    - A model's reply is read by a parser; nothing of it runs on this machine.
    - What environment or evaluator lost has no reward: the episode is an error of the type `SandboxError`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
from pydantic import Field

from dart_agent.episodes.play import OutcomeOnly, play
from dart_agent.formats import get_format
from dart_agent.policies.policy import Decision, Episode
from dart_gym.cluster.client.cluster_place import place_of
from dart_gym.core.actions import Wait
from dart_gym.core.errors import DartGymError
from dart_gym.core.outcomes import Observation, TerminalState
from dart_gym.envs.cluster_link import connect
from dart_gym.sessions.reset_request import ResetRequest
from dart_gym.tasks.catalog.registry import get_task
from dart_gym.tasks.requirements.runnable import named_tasks
from dart_gym.utils.png import encode_png

try:
    import verifiers.v1 as vf
    from dart_gym_verifiers_tools import DesktopTools, ToolCalls
    from verifiers.v1.dialects.chat import message_to_wire
    from verifiers.v1.mcp import SharedToolServer
except ImportError as error:
    raise ImportError("verifiers is not installed; next step: pip install 'verifiers>=0.4,<0.5'") from error

__all__ = ["Desktops", "DesktopsEnv", "ScreenChat"]

SYSTEM = """You use a computer to do a task. You see its screen, {width} x {height} pixels, and answer with what to do.

{actions}"""
WITH_TOOLS = "Call one tool at a time; each answers with the screen after it. Call `done` when the task is done."


class DesktopsConfig(vf.TasksetConfig):
    """Which episodes there are: every task with every seed."""

    tasks: list[str] = ["miniwob/click-test"]
    """Names of tasks ("miniwob/click-test"), or of suites ("miniwob") for those of theirs that can run."""
    seeds: int = Field(1, ge=1)
    """How many initial states of each task, seeds 0, 1, ..."""
    format: str = "computer_13"
    """How the model writes actions, a name of `dart_agent.formats`; its description is the system prompt."""
    tools: bool = False
    """Whether the model calls actions as tools; `format` says nothing then."""
    max_steps: int | None = Field(None, ge=1)
    """Most actions of an episode; None for each task's own limit."""
    url: str | None = None
    """The cluster whose desktops decide what of a suite can run, as `DesktopsEnvConfig.url`; None for this machine."""


class DesktopData(vf.TaskData):
    """One episode to be; see `DesktopsConfig`."""

    task: str
    seed: int
    format: str
    tools: bool = False
    max_steps: int | None = None


class DesktopState(vf.State):
    """What came of an episode: the evaluator's score in [0, 1], and how many actions were carried out."""

    score: float = 0.0
    actions: int = 0


class DesktopTask(vf.Task[DesktopData, DesktopState]):
    """A task on a desktop. Its score is the reward."""

    @vf.reward
    async def score_of_the_task(self, trace: vf.Trace) -> float:
        """The task's own evaluator, in [0, 1]."""
        return trace.state.score

    @vf.metric
    async def actions(self, trace: vf.Trace) -> float:
        """How many actions were carried out."""
        return float(trace.state.actions)


class Desktops(vf.Taskset[DesktopTask, DesktopsConfig]):
    """Tasks of our suites."""

    def load(self) -> Iterator[DesktopTask]:
        """Yield every task with every seed.

        Raises:
            UnknownTaskError: no such task or suite.
            UnrunnableTaskError: tasks that are named, or all of a suite, cannot run.
            ConfigurationError: no such format.
        """
        config = self.config
        words = WITH_TOOLS if config.tools else get_format(config.format).describe()
        for task in named_tasks(config.tasks, place_of(config.url)):
            screen = get_task(task).desktop
            system = SYSTEM.format(width=screen.width, height=screen.height, actions=words)
            for seed in range(config.seeds):
                yield DesktopTask(
                    DesktopData(
                        name=f"{task}#{seed}", system_prompt=system, task=task, seed=seed,
                        format=config.format, tools=config.tools, max_steps=config.max_steps,
                    ),
                    config.task,
                )  # fmt: skip


class _Asked:
    """A policy whose decisions are the agent's replies."""

    def __init__(self, interaction: vf.Interaction, action_format: str, patience: int) -> None:
        self._interaction, self._format, self._patience = interaction, get_format(action_format), patience
        self._said, self._unread = "", 0

    def reset(self, episode: Episode) -> None:
        """Begin with the instruction."""
        self._said = f"{episode.instruction}\n"

    async def act(self, observation: Observation) -> Decision:
        """Show the screen, read the reply."""
        error = f"The last action failed: {observation.action_error}\n" if observation.action_error else ""
        said, self._said = self._said, ""
        segment = await self._interaction.turn([shown(f"{said}{error}The screen now:", observation)])
        if segment.terminated:  # by a limit of the run: what was reached is scored; by an error: nothing is
            trace = self._interaction.trace
            return Decision(terminal=TerminalState.MODEL_ERROR if trace.errors else TerminalState.STEP_LIMIT)
        height, width = observation.screenshot.shape[:2]
        reply = self._format.parse(segment.last_reply, (width, height))
        self._unread = self._unread + 1 if reply.errors else 0
        if not reply.errors:
            return Decision(reply.actions, segment.last_reply, reply.thought)
        self._said = f"Nothing was done: {reply.problem}\n"
        told = self._unread <= self._patience
        return Decision((Wait(0.0),) if told else (), terminal=None if told else TerminalState.PARSE_ERROR)


class DesktopsEnvConfig(vf.EnvConfig):
    """Where the desktops are."""

    player: vf.AgentConfig = vf.AgentConfig(runtime={"type": "subprocess"})
    """The model. Its program is `ScreenChat`, which starts no process and runs none of the model's words."""
    url: str | None = None
    """The cluster, such as "ws://127.0.0.1:8765"; None for one of this process's own."""
    token_env: str | None = None
    """The environment variable that holds the cluster's token."""
    patience: int = Field(0, ge=0)
    """How many unreadable replies in a row are told the model, each for a step; the next one ends the episode."""


class DesktopsEnv(vf.Env[DesktopsEnvConfig]):
    """Plays episodes, each on a session of its own."""

    async def start(self) -> None:
        """Find the cluster, or start one."""
        self._open = AsyncExitStack()
        self._cluster = await self._open.enter_async_context(connect(self.config.url, token_env=self.config.token_env))

    async def stop(self) -> None:
        """Let go of it."""
        if "_open" in vars(self):
            await self._open.aclose()

    async def run(self, task: DesktopTask, agents: vf.Agents) -> None:
        """One episode. Raises `SandboxError`: environment or evaluator lost it."""
        data = task.data
        if data.tools:
            return await self._by_tools(task, agents)
        async with agents.player.interaction(task) as interaction, self._cluster.session() as session:
            played = await play(
                _Asked(interaction, data.format, self.config.patience), session, data.task, seed=data.seed,
                max_steps=data.max_steps, recorder=OutcomeOnly(),
            )  # fmt: skip
            if played.lost_by and played.lost_by != "engine":  # an engine's error stands in the trace already
                raise vf.SandboxError(f"the {played.lost_by} lost the episode: {played.detail}")
            trace = interaction.trace
            trace.state.score, trace.state.actions = played.score or 0.0, played.num_actions
            trace.info.update(terminal=str(played.terminal), detail=played.detail)

    async def _by_tools(self, task: DesktopTask, agents: vf.Agents) -> None:
        request = ResetRequest(task.data.task, task.data.seed, max_steps=task.data.max_steps)
        async with self._cluster.session() as session:
            desktop = DesktopTools(session, request)
            try:
                start = (await desktop.begin()).observation
                async with desktop.served() as url:
                    tools = {"": SharedToolServer(url, local=True, external=True)}
                    async with agents.player.interaction(task, tools=tools) as interaction:
                        await interaction.turn([shown(f"{start.instruction}\nThe screen now:", start)])
                        result, trace = await desktop.end(), interaction.trace
                        outcome = result.evaluation
                        trace.info.update(terminal=str(result.terminal), detail=outcome.detail if outcome else "")
                        if outcome is None or outcome.score is None:
                            raise vf.SandboxError(f"the environment lost the episode: {trace.info['detail']}")
                        trace.state.score, trace.state.actions = outcome.score, result.step_index
            except DartGymError as error:
                raise vf.SandboxError(f"the environment lost the episode: {error}") from error


def shown(text: str, observation: Observation) -> dict[str, Any]:
    """A message of the user with the screen. Pure."""
    png = base64.b64encode(encode_png(observation.screenshot)).decode()
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png}"}}
    return {"role": "user", "content": [{"type": "text", "text": text}, image]}


class ScreenChatConfig(vf.HarnessConfig):
    """How the model is asked."""

    screenshots: int | None = Field(None, ge=1)
    """How many of the newest screenshots a prompt shows; None for all. With a window, each prompt is a branch."""


class ScreenChat(vf.Harness[ScreenChatConfig]):
    """A chat in this process, with tools where there are any: nothing is installed, started or executed."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Ask for the next reply to the conversation; where it calls tools, answer and ask again."""
        system, prompt = self.resolve_prompt(data)
        messages = [message_to_wire(message) for message in prompt or []]
        if system:
            messages.insert(0, {"role": "system", "content": system})
        headers = {"Authorization": f"Bearer {secret}"}
        async with ToolCalls(mcp_urls) as tools, httpx.AsyncClient(trust_env=False, timeout=None) as http:
            while True:  # verifiers' own deadlines and limits hold
                body = {"model": ctx.model, "messages": newest(messages, self.config.screenshots)}
                body |= {"tools": tools.schemas} if tools.schemas else {}
                reply = await http.post(f"{endpoint}/chat/completions", json=body, headers=headers)
                if reply.is_error:
                    return vf.ProgramResult(1, "", reply.text)
                said = reply.json()["choices"][0]["message"]
                messages += [said, *[await tools.answer(call) for call in said.get("tool_calls") or []]]
                if tools.over or not said.get("tool_calls"):
                    return vf.ProgramResult(0, "", "")


def newest(messages: list[dict[str, Any]], screenshots: int | None) -> list[dict[str, Any]]:
    """Messages with the newest images only; the place of an older one says that it was there. Pure."""
    parts = [part for m in messages if isinstance(m["content"], list) for part in m["content"]]
    images = [id(part) for part in parts if part["type"] == "image_url"]
    old = set(images[: len(images) - screenshots] if screenshots else ())
    gone = {"type": "text", "text": "(an earlier screen)"}
    return [
        {**m, "content": [gone if id(part) in old else part for part in m["content"]]}
        if isinstance(m["content"], list)
        else m
        for m in messages
    ]
