"""GRPO through the head compared with GRPO of coordinates in text: rollouts of a configuration's tasks, in one process.

    python -m dart_lab.agent.pointer_grpo MODEL_DIR OUT_DIR [--config configs/pointer.yaml] [--updates 20]

What a run does with eight processes, one after the other, with the same parts: the policy planner+grounder behind an
engine, groups of rollouts of one screen, the trainer's log-probabilities and objective, versions that the engine loads.
Tasks, sizes of groups and the learning rate are the configuration's. Prints the success on held-out seeds before and
after, with Wilson's 95 % intervals, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from dart_agent.engines.base.engine import Sampling
from dart_agent.engines.embedded.transformers_engine import TransformersEngine
from dart_agent.episodes.play import play
from dart_agent.episodes.trajectory import Trajectory
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.policies.planned_policies import planned_policies
from dart_agent.policies.planner_grounder import InstructionPlanner
from dart_gym.sessions.session import Session
from dart_gym.tasks.catalog.parameters import FIRST_TRAINING_SEED
from dart_gym.utils.rates import wilson_interval
from dart_train.config.run_config import RunConfig, load_config
from dart_train.trainer.batches.collator import Collator, ImageCache, Sample
from dart_train.trainer.losses.dart_objective import ObjectiveConfig, Scored, objective
from dart_train.trainer.losses.surrogates import Normalizer
from dart_train.trainer.policy_logprobs import response_logprobs
from dart_train.trainer.weights import checkpoint
from dart_train.trainer.weights.model_loading import load_model


@dataclass
class Learner:
    """One policy, its trainer and its desktop."""

    start: Path
    engine: TransformersEngine
    session: Session
    config: RunConfig

    def __post_init__(self) -> None:
        rollout, trainer = self.config.rollout, self.config.trainer
        self._groups = trainer.groups_per_step
        self._size = rollout.group_size
        most = rollout.sampling.max_tokens
        self._tasks = list(zip(self.config.train_tasks, (task.max_steps for task in rollout.tasks), strict=True))
        sampling = Sampling(max_tokens=most, training=True)
        make = planned_policies(self.start, sampling, InstructionPlanner())
        self._policy = make(self.engine)
        greedy = planned_policies(self.start, Sampling(max_tokens=most, temperature=0.0), InstructionPlanner())
        self._greedy = greedy(self.engine)
        self._model, self._tokens = load_model(self.start), ModelTokens.load(self.start)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), trainer.learning_rate, weight_decay=0.0)

    async def success(self, episodes: int, *, greedy: bool = False) -> dict[str, float]:
        """Return the share of held-out seeds on which it succeeded, its interval, and each task's share."""
        policy, right = self._greedy if greedy else self._policy, dict[str, int]()
        for task, most in self._tasks:
            played = [await play(policy, self.session, task, seed=seed, max_steps=most) for seed in range(episodes)]
            right[task] = sum(bool(one.success) for one in played)
        count = episodes * len(self._tasks)
        low, high = wilson_interval(sum(right.values()), count)
        shares = {task: number / episodes for task, number in right.items()}
        return {"rate": sum(right.values()) / count, "low": low, "high": high, **shares}

    async def update(self, number: int) -> float:
        """Play groups and make one step of GRPO; returns the mean reward."""
        played: list[tuple[Trajectory, float, int]] = []
        rewards = []
        for group in range(number * self._groups, (number + 1) * self._groups):
            seed, (task, most) = FIRST_TRAINING_SEED + group, self._tasks[group % len(self._tasks)]
            own = [
                await play(
                    self._policy, self.session, task, seed=seed, max_steps=most, policy_seed=1000 * seed + member
                )
                for member in range(self._size)
            ]
            scores = [float(bool(one.success)) for one in own]
            rewards += scores
            if 0 < sum(scores) < self._size:
                played += [(one, score - float(np.mean(scores)), group) for one, score in zip(own, scores, strict=True)]
        if played:
            self._step(played)
        return float(np.mean(rewards))

    def _step(self, played: list[tuple[Trajectory, float, int]]) -> None:
        shots: dict[str, NDArray[np.uint8]] = {}
        samples = []
        for number, (one, advantage, group) in enumerate(played):
            for place, step in enumerate(one.steps):
                assert step.pixels is not None
                name = f"{number}/{place}"
                shots[name] = np.asarray(step.pixels.prompt[0])
                samples.append(
                    Sample(
                        step.prompt_ids, (name,), step.response_ids, step.logprobs, advantage, group, trajectory=number
                    )
                )
        collate = Collator(self._tokens, VisionSpec.from_dir(self.start), ImageCache(shots.__getitem__))
        micro = collate(samples)
        logprobs, entropies = response_logprobs(self._model, micro, self._tokens.suppressed_ids)
        scored = Scored(
            logprobs,
            entropies,
            logprobs.detach(),
            micro.mask,
            micro.advantages,
            micro.behaviour_logprobs,
            micro.behaviour_known,
        )
        loss = objective(scored, ObjectiveConfig(beta=0.0), Normalizer(micro.num_tokens, len(samples))).loss
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()

    async def publish(self, directory: Path, version: int) -> None:
        """Let the engine serve what was learnt."""
        await self.engine.update_weights(str(checkpoint.write_model(self._model, directory, self.start)), version)


async def learn(start: Path, out: Path, updates: int, episodes: int, config: RunConfig) -> dict[str, object]:
    """Before, updates, after."""
    engine = TransformersEngine(start, threads=1)
    async with Session() as session:
        learner = Learner(start, engine, session, config)
        began, found = time.process_time(), {"before": await learner.success(episodes)}
        found["before_greedy"] = await learner.success(episodes, greedy=True)
        print(json.dumps(found), flush=True)
        rewards = []
        for number in range(updates):
            rewards.append(round(await learner.update(number), 3))
            await learner.publish(out / f"v{number + 1:06d}", number + 1)
            print(f"update {number + 1}: {rewards[-1]}", flush=True)
        found |= {
            "after": await learner.success(episodes),
            "after_greedy": await learner.success(episodes, greedy=True),
        }
    await engine.close()
    spent = round(time.process_time() - began, 1)
    rollouts = updates * config.trainer.groups_per_step * config.rollout.group_size
    return {**found, "rewards": rewards, "rollouts": rollouts, "processor_s": spent}


def main(
    start: Path,
    out: Path,
    updates: Annotated[int, typer.Option(help="Steps of GRPO.")] = 20,
    episodes: Annotated[int, typer.Option(help="Held-out ones of each task, before and after.")] = 200,
    config: Annotated[Path, typer.Option(help="Whose tasks, groups and learning rate.")] = Path("configs/pointer.yaml"),
) -> None:
    """Learn, and print the result."""
    torch.set_num_threads(1)
    print(json.dumps(asyncio.run(learn(start, out, updates, episodes, load_config(config)))))


if __name__ == "__main__":
    typer.run(main)
