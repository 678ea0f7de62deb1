"""Our suites as a task of Inspect AI: `inspect eval dart_gym_inspect/desktops -T tasks=miniwob`.

Invariants:
    - The score is the task's own evaluator's. An episode that environment or evaluator lost is a sample's error
      (`LostEpisodeError`), which Inspect's `--retry-on-error` and `--fail-on-error` count, and never a score of 0.
    - A reply of the model is read by an action format; nothing of it runs, and no sandbox of Inspect's is needed.
    - A sample holds one desktop, from the beginning of its solver to its end.
"""

from __future__ import annotations

import base64

from dart_agent.episodes.play import OutcomeOnly, play
from dart_agent.formats import get_format
from dart_agent.policies.policy import Decision, Episode
from dart_gym.cluster.client.cluster_place import place_of
from dart_gym.core.errors import DartGymError
from dart_gym.core.outcomes import Observation, TerminalState
from dart_gym.envs.cluster_link import connect
from dart_gym.tasks.catalog.registry import get_task
from dart_gym.tasks.requirements.runnable import named_tasks
from dart_gym.utils.png import encode_png

try:
    from inspect_ai import Task, task
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import ChatMessageSystem, ChatMessageUser, ContentImage, ContentText
    from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
    from inspect_ai.solver import Generate, Solver, TaskState, solver
except ImportError as error:
    raise ImportError("Inspect is not installed; next step: pip install 'inspect-ai>=0.3.285'") from error

SYSTEM = """You use a computer to do a task. You see its screen, {width} x {height} pixels, and answer with what to do.

{actions}"""


class LostEpisodeError(DartGymError):
    """Environment or evaluator lost an episode: it has no score."""


class _Asked:
    """A policy whose decisions are the model's replies in a sample's conversation."""

    def __init__(self, state: TaskState, generate: Generate, action_format: str, screenshots: int | None) -> None:
        self._state, self._generate, self._format = state, generate, get_format(action_format)
        self._kept, self._said = screenshots, ""

    def reset(self, episode: Episode) -> None:
        """Begin with the instruction."""
        self._said = f"{episode.instruction}\n"

    async def act(self, observation: Observation) -> Decision:
        """Show the screen, read the reply."""
        error = f"The last action failed: {observation.action_error}\n" if observation.action_error else ""
        png = base64.b64encode(encode_png(observation.screenshot)).decode()
        text = ContentText(text=self._said + error + "The screen now:")
        message = ChatMessageUser(content=[text, ContentImage(image=f"data:image/png;base64,{png}")])
        self._said = ""
        self._state.messages.append(message)
        self._forget()
        self._state = await self._generate(self._state)
        height, width = observation.screenshot.shape[:2]
        reply = self._format.parse(self._state.output.completion, (width, height))
        if reply.errors:
            return Decision(error=reply.problem, terminal=TerminalState.PARSE_ERROR)
        return Decision(reply.actions, self._state.output.completion, reply.thought)

    def _forget(self) -> None:
        """Take the oldest screens out of the prompt."""
        shown = [m for m in self._state.messages if m.role == "user" and isinstance(m.content, list)]
        for message in shown[: -self._kept] if self._kept else ():
            message.content = [part for part in message.content if part.type != "image"]


def _samples(tasks: str | list[str], seeds: int, action_format: str, url: str | None) -> MemoryDataset:
    """Return a sample for each task and seed.

    Raises:
        UnknownTaskError: no such task or suite.
        UnrunnableTaskError: tasks that are named, or all of a suite, cannot run.
        ConfigurationError: no such format.
    """
    words, samples = get_format(action_format).describe(), []
    for name in named_tasks([tasks] if isinstance(tasks, str) else tasks, place_of(url)):
        screen = get_task(name).desktop
        system = ChatMessageSystem(content=SYSTEM.format(width=screen.width, height=screen.height, actions=words))
        for seed in range(seeds):
            samples.append(Sample(input=[system], id=f"{name}#{seed}", metadata={"task": name, "seed": seed}))
    return MemoryDataset(samples, name="dart-gym")


@solver
def use_desktop(
    action_format: str = "computer_13",
    max_steps: int | None = None,
    screenshots: int | None = None,
    url: str | None = None,
    token_env: str | None = None,
) -> Solver:
    """Let the model use a desktop until its sample's task ends; the arguments are those of `desktops`."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        asked = _Asked(state, generate, action_format, screenshots)
        about = state.metadata
        async with connect(url, token_env=token_env) as cluster, cluster.session() as session:
            played = await play(
                asked, session, about["task"], seed=about["seed"], max_steps=max_steps, recorder=OutcomeOnly()
            )
        if played.lost_by:
            raise LostEpisodeError(f"the {played.lost_by} lost the episode: {played.detail}")
        facts = {"terminal": str(played.terminal), "actions": played.num_actions, "detail": played.detail}
        state.metadata |= facts | {"score": played.score}
        state.completed = True
        return state

    return solve


@scorer(metrics=[mean(), stderr()])
def evaluator() -> Scorer:
    """The score that the task's own evaluator gave, in [0, 1]."""

    async def score(state: TaskState, target: Target) -> Score:
        facts = state.metadata
        return Score(value=facts["score"], explanation=facts["detail"], metadata={"terminal": facts["terminal"]})

    return score


@task
def desktops(
    tasks: str | list[str] = "miniwob/click-test",
    seeds: int = 1,
    action_format: str = "computer_13",
    max_steps: int | None = None,
    screenshots: int | None = None,
    url: str | None = None,
    token_env: str | None = None,
) -> Task:
    """Tasks of our suites.

    Args:
        tasks: names of tasks, or of suites for those of theirs that can run.
        seeds: how many initial states of each task, seeds 0, 1, ...
        action_format: how the model writes actions, a name of `dart_agent.formats`.
        max_steps: most actions of an episode; None for each task's own limit.
        screenshots: how many of the newest screenshots a prompt shows; None for all.
        url: the cluster; None for one of this process's own.
        token_env: the environment variable that holds the cluster's token.
    """
    return Task(
        dataset=_samples(tasks, seeds, action_format, url),
        solver=use_desktop(action_format, max_steps, screenshots, url, token_env),
        scorer=evaluator(),
    )
