"""The simulated workload: latencies of desktops, models and trainer in the published setting, and episodes from them.

Every number has a source; two that nobody published, `tail` and `train_s_per_action`, are fitted to the figures that
the paper gives for its *coupled* baseline (`study.calibrate`, docs/results/efficiency.md). Nothing is chosen by mode.

An episode is a function of the setting's seed and its assignment alone: all modes play the same ones.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from functools import cache

from dart_train.rollout.schedule.scheduler import Assignment
from dart_train.rollout.settings.rollout_config import TaskEntry


@dataclass(frozen=True, slots=True)
class DesktopTimes:
    """Seconds of an OSWorld virtual machine as its runners drive it, and how much slower some are than others.

    Attributes:
        boot_s: until the machine answers.
        setup_s: the task's configuration steps.
        settle_s: fixed wait before the first screenshot (OSWorld's and DART's runners).
        pause_s: fixed wait after every action.
        action_s: carrying it out (0.4) and the screenshot (0.3).
        evaluate_s: least and greatest time of the evaluator.
        tail: sigma of the log-normal slowness of an episode's machine, relative to the median; fixed waits are
            not affected. Fitted.
    """

    boot_s: float = 22.0
    setup_s: float = 7.5
    settle_s: float = 60.0
    pause_s: float = 2.0
    action_s: float = 0.7
    evaluate_s: tuple[float, float] = (2.0, 20.0)
    tail: float = 0.9


@dataclass(frozen=True, slots=True)
class ModelTimes:
    """A 7B vision-language model on one H100 as an engine.

    Attributes:
        image_tokens: of a 1920x1080 screenshot, 69 x 39 patches of 28 pixels.
        images: newest screenshots in the prompt.
        fixed_tokens: system prompt and instruction.
        response_tokens: median length of a response.
        response_spread: its log-normal sigma.
        max_tokens: limit of a response.
        prefill_tokens_per_s: 2 x 7.6e9 operations a token at 45 % of 989e12 a second.
        token_s: one decoding step: 16.6 GB of weights at 3.35 TB/s, and the same again for everything else.
        token_s_per_request: what each further request adds to it (attention over 15,000 cached tokens).
        host_s_per_image: before the GPU begins: reading a PNG screenshot and cutting it into patches, one processor.
        update_s: new weights in one engine, in place: 16.6 GB of files at about a gigabyte a second. (DART starts the
            server anew, which takes it 150 s; the ablation has that too.)
    """

    image_tokens: int = 2691
    images: int = 5
    fixed_tokens: int = 1000
    response_tokens: float = 110.0
    response_spread: float = 0.5
    max_tokens: int = 500
    prefill_tokens_per_s: float = 29_000.0
    token_s: float = 0.010
    token_s_per_request: float = 0.0003
    host_s_per_image: float = 0.075
    update_s: float = 15.0


BROKEN = "broken"
"""Prefixes of the names of tasks that lose their desktops."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One cluster and what it is to learn.

    Attributes:
        desktops: workers.
        engines: model replicas.
        tasks: of the training set (DART: 181).
        group_size: rollouts of a task.
        max_steps: limit of an episode.
        batch_groups: groups of one optimizer step (DART: 8).
        max_staleness: versions that a trajectory may be old (DART: the newest two are accepted).
        length: median steps of a success, and its log-normal sigmas between tasks and within one. With failures, most
            of which go on to the limit, the mean is about 15 (DART: 15 at first, then 12).
        to_limit: share of the failures that end at the limit.
        success: parameters of the beta distribution of the tasks' success rates: mean 53 %, as in DART's data;
            a third of the groups are then without signal.
        signal: share of groups with unequal rewards, for groups of any size; None: it follows from the tasks and from
            chance.
        train_s_per_action: the trainer's time. Fitted.
        seed: of tasks and episodes.
        broken: tasks beside the others whose desktops are lost during set-up, every time ...
        broken_s: ... after this number of seconds, such as a time limit.
    """

    desktops: int = 80
    engines: int = 4
    tasks: int = 181
    group_size: int = 8
    max_steps: int = 30
    batch_groups: int = 8
    max_staleness: int = 1
    length: tuple[float, float, float] = (9.0, 0.5, 0.35)
    to_limit: float = 0.6
    success: tuple[float, float] = (0.7, 0.62)
    signal: float | None = None
    desktop: DesktopTimes = field(default_factory=DesktopTimes)
    model: ModelTimes = field(default_factory=ModelTimes)
    train_s_per_action: float = 0.85
    seed: int = 0
    broken: int = 0
    broken_s: float = 300.0

    def task_entries(self) -> list[TaskEntry]:
        """The training set, for the scheduler."""
        whole = [TaskEntry(id=f"task-{number}") for number in range(self.tasks)]
        return whole + [TaskEntry(id=f"{BROKEN}-{number}") for number in range(self.broken)]


@dataclass(frozen=True, slots=True)
class Episode:
    """Everything about one rollout that is chance.

    Attributes:
        boot_s: booting its desktop.
        prepare_s: setting it up, and the wait before the first screenshot.
        step_s: each step of the desktop.
        tokens: of each response.
        evaluate_s: the evaluation.
        reward: 0 or 1.
    """

    boot_s: float
    prepare_s: float
    step_s: tuple[float, ...]
    tokens: tuple[int, ...]
    evaluate_s: float
    reward: float

    @property
    def environment_s(self) -> float:
        """Return what the desktop has to do for it."""
        return self.boot_s + self.prepare_s + sum(self.step_s) + self.evaluate_s


def draw(setting: Setting, assignment: Assignment) -> Episode:
    """The episode of an assignment. Pure."""
    success, median_steps = _task(setting.seed, assignment.task_id, setting.success, setting.length)
    rng = random.Random(f"{setting.seed}/{assignment.seed}/{assignment.n}/{assignment.attempt}")
    reward = float(rng.random() < success)
    if setting.signal is not None:
        unlike = random.Random(f"{setting.seed}/{assignment.group_key}").random() < setting.signal
        reward = float(unlike and assignment.n == 0)
    steps = max(1, round(median_steps * math.exp(setting.length[2] * rng.gauss(0, 1))))
    limit = min(setting.max_steps, assignment.max_steps or setting.max_steps)
    if steps > limit or (not reward and rng.random() < setting.to_limit):
        steps = limit
    times, model = setting.desktop, setting.model
    slow = math.exp(times.tail * rng.gauss(0, 1))
    lengths = (model.response_tokens * math.exp(model.response_spread * rng.gauss(0, 1)) for _ in range(steps))
    return Episode(
        boot_s=slow * times.boot_s,
        prepare_s=slow * times.setup_s + times.settle_s,
        step_s=tuple(times.pause_s + slow * times.action_s * math.exp(0.3 * rng.gauss(0, 1)) for _ in range(steps)),
        tokens=tuple(max(10, min(model.max_tokens, round(length))) for length in lengths),
        evaluate_s=slow * rng.uniform(*times.evaluate_s),
        reward=reward,
    )


@cache
def _task(
    seed: int, task_id: str, success: tuple[float, float], length: tuple[float, float, float]
) -> tuple[float, float]:
    """Success rate of a task, and the median steps of its successes."""
    rng = random.Random(f"{seed}/{task_id}")
    return rng.betavariate(*success), length[0] * math.exp(length[1] * rng.gauss(0, 1))
