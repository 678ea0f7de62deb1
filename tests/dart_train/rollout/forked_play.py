"""For tests of forks: an engine that says what it is told to, and tasks of drawn buttons, some of which change."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

from echo_engine import EchoEngine
from service_parts import config_of

from dart_agent.engines.base.engine import Generation, Prompt, Sampling
from dart_agent.engines.remote.engine_server import EngineServer
from dart_agent.policies.policy import PlayableSession, Policy
from dart_gym.cluster.server.cluster_server import ClusterServer, ServerSettings
from dart_gym.desktops.base.desktop import Desktop
from dart_gym.tasks.catalog.scenario import Prepared
from dart_gym.tasks.catalog.task import Task
from dart_gym.tasks.suites import fake_suite
from dart_train.data.manager.data_manager import DataManager
from dart_train.rollout.fleet.replica import Weights
from dart_train.rollout.service.rollout_service import RolloutService

OK_CLICK = "Action: click(start_box='(42,56)')"
SPEC = fake_suite.TASKS[0].desktop
TASKS = (
    Task("forked_play:Forked/long", "", SPEC, max_steps=6, raw={"id": "long", "clicks": 3, "buttons": 4}),
    Task("forked_play:Forked/changing", "", SPEC, max_steps=6, raw={"id": "changing", "clicks": 3, "buttons": 4}),
    Task(
        "forked_play:Forked/declared", "", SPEC, max_steps=6,
        raw={"id": "declared", "clicks": 3, "buttons": 4, "dart": {"deterministic": False}},
    ),
)  # fmt: skip
_plays = itertools.count()


class ForkScenario(fake_suite.FakeScenario):
    """Of the task "changing" every play has other buttons, whatever the seed."""

    async def prepare(self, desktop: Desktop, task: Task, seed: int) -> Prepared:
        changing = task.raw["id"] == "changing"
        prepared = await super().prepare(desktop, task, next(_plays) if changing else seed)
        return replace(prepared, instruction="Click the buttons.")


class Forked:
    """The suite, as `forked_play:Forked`."""

    @staticmethod
    def load_tasks() -> tuple[Task, ...]:
        return TASKS

    make_scenario = ForkScenario


class Says(EchoEngine):
    """Says texts in turn, each with another number of tokens, and remembers what it was asked."""

    def __init__(self, texts: Iterator[str] | list[str], first: int = 0) -> None:
        super().__init__("says", "", 0, 0.0, "")
        self._texts = iter(texts)
        self._first = first  # decision of the episode
        self.prompts: list[Prompt] = []
        self.seeds: list[int] = []
        self.entropies: Iterator[float] | None = None

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        self._say = next(self._texts)
        self.prompts.append(prompt)
        self.seeds.append(sampling.seed)
        generation = await super().generate(prompt, sampling)
        ids = generation.response_ids[: 1 + (self._first + len(self.prompts)) % 3]
        entropy = next(self.entropies) if self.entropies is not None else None
        return replace(generation, response_ids=ids, logprobs=generation.logprobs[: len(ids)], entropy=entropy)


async def service_plays(
    task: str,
    data: DataManager,
    sockets,
    make_policy,
    budget: int | None,
    *,
    shown_pages: int = 0,
    make_oracle: Callable[[PlayableSession], Policy] | None = None,
    **settings,
) -> RolloutService:
    """Play with an engine that clicks beside all buttons, so that all episodes fail at their step limit."""
    engine = Says(itertools.repeat(OK_CLICK.replace("42,56", "1,1")))
    engine.entropies = itertools.cycle([0.1, 0.2, 0.9, 0.3, 0.4, 0.5])
    url = f"ws+unix://{sockets / 'forks.sock'}"
    async with (
        ClusterServer(ServerSettings(listen=url, desktops=4, suites=("forked_play:Forked",))),
        EngineServer(engine).listening(f"ws+unix://{sockets / 'says.sock'}") as engine_url,
    ):
        config = config_of(engine_url, tasks=(task,), group_size=2, budget_rollouts=budget, **settings)
        service = RolloutService(
            config, data, url=url, weights=Weights("", 0), make_policy=make_policy,
            shown_pages=shown_pages, make_oracle=make_oracle,
        )  # fmt: skip
        await service.run()
    return service
