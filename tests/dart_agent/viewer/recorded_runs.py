"""Runs that nobody played: directories of many small episodes, with metrics, as a trainer leaves them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from dart_agent.episodes.screenshots import image_hash
from dart_agent.episodes.trajectory import Step, Trajectory
from dart_agent.episodes.trajectory_format import episode_name, image_key, pack_trajectory
from dart_gym.core.outcomes import TerminalState
from dart_gym.utils.png import encode_png

TASKS = tuple(
    f"office/task-{name}" for name in ("archive", "budget", "chart", "invoice", "letter", "merge", "sort", "table")
)
SIZE = (320, 200)


def screen(root: Path, shade: int) -> str:
    """Store a drawn window; its hash."""
    image = Image.new("RGB", SIZE, (40, 70, 100 + shade))
    draw = ImageDraw.Draw(image)
    draw.rectangle((60, 40, 260, 160), fill=(235, 238, 242), outline=(20, 20, 30))
    draw.rectangle((60, 40, 260, 58), fill=(70 + shade, 110, 200))
    draw.rectangle((180, 130, 245, 150), fill=(60, 150, 90))
    draw.text((196, 134), "Save", fill="white")
    pixels = np.asarray(image)
    path = root / image_key(image_hash(pixels))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_png(pixels))
    return image_hash(pixels)


def steps_of(images: list[str], count: int, *, problem_at: int | None = None) -> tuple[Step, ...]:
    """Decisions of a model; at one of them it wrote what is no action."""
    made = []
    for index in range(count):
        action = {"kind": "click", "x": 200 + index, "y": 140, "button": "left", "count": 1, "modifiers": ()}
        wrong = index == problem_at
        made.append(
            Step(
                prompt_ids=tuple(range(400)), response_ids=tuple(range(20)), logprobs=(-0.3,) * 20,
                text="Action: click",
                thought="The button that saves is at the lower right.", actions=() if wrong else (action,),
                error="no 'Action:' in it" if wrong else "", screenshot=images[index % len(images)], screen=SIZE,
                screenshot_after=images[-1] if index == count - 1 else "", timings={"generate": 0.5, "settle": 0.2},
            )
        )  # fmt: skip
    return tuple(made)


def write_episode(root: Path, trajectory: Trajectory) -> Path:
    """One complete episode, without what durability costs."""
    name = trajectory.trajectory_id or episode_name(trajectory.task_id, trajectory.seed)
    directory = root / "trajectories" / name
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "trajectory.msgpack").write_bytes(pack_trajectory(trajectory))
    return directory


def write_evaluation(root: Path, policy: str, count: int, succeeds: Callable[[int], bool]) -> list[str]:
    """Episodes of all tasks in turn, of which some fail, each fifth of these with a problem on the way; the screens."""
    images = [screen(root, shade) for shade in (0, 40, 80)]
    for number in range(count):
        success, task = succeeds(number), TASKS[number % len(TASKS)]
        trajectory = Trajectory(
            task, number // len(TASKS), f"Save the {task.rpartition('-')[2]} under another name.", "h", policy=policy,
            source="evaluation", terminal=TerminalState.DONE if success else TerminalState.STEP_LIMIT,
            score=1.0 if success else (0.0, 0.25, 0.5)[number % 3], num_actions=3 + number % 4, ended_at=1.7e9 + number,
            steps=steps_of(images, 3 + number % 4, problem_at=1 if not success and number % 5 == 0 else None),
        )  # fmt: skip
        write_episode(root, trajectory)
    return images


def write_metrics(root: Path, lines: int) -> None:
    """Of a run that learns: a trainer and a rollout service, the last line cut off."""
    folder = root / "metrics"
    folder.mkdir(parents=True, exist_ok=True)
    trainer, rollout = [], []
    for index in range(lines):
        learned = 1 - math.exp(-3 * index / lines)
        noise = math.sin(index * 1.7) * 0.04
        trainer.append({"t": 1e9 + 5 * index, "loss": 0.2 - 0.15 * learned + noise, "reward": learned + noise,
                        "entropy": 1.2 - learned + noise, "grad_norm": 0.5 + noise,
                        "staleness/mean": 0.4 + noise})  # fmt: skip
        success = {task: max(0.0, min(1.0, learned * (0.5 + 0.07 * place) + noise)) for place, task in enumerate(TASKS)}
        rollout.append(
            {"t": 1e9 + 5 * index, "success": success, "rollouts": 4 * index, "actions_per_min": 900 + noise}
        )
    for name, rows in (("trainer", trainer), ("rollout", rollout)):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text + "damaged\n" + '{"t": 1e9, "lo')


def write_run(root: Path, count: int) -> Path:
    """A run with two evaluations of `count` episodes each, and metrics."""
    write_evaluation(root / "eval/before", "version 0", count, lambda number: number % 3 == 0)
    write_evaluation(root / "eval/after", "version 54", count, lambda number: number % 4 != 0)
    write_metrics(root, 200)
    return root
