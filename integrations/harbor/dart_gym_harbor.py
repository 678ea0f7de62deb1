"""Exports tasks of our suites as Harbor tasks: `python -m dart_gym_harbor DIRECTORY TASK...`.

Each task and seed becomes a folder with `task.toml`, `instruction.md`, `environment/` (a Dockerfile on our image and
the command `desktop`), `solution/solve.sh` (a perfect user) and `tests/test.sh` (the task's own evaluator).

Invariants:
    - What an agent is told is the instruction of that very episode: each is started once while exporting.
    - Solution and verifier hold a random key; the environment holds its hash only.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import shutil
from pathlib import Path
from typing import Annotated

import dart_gym_harbor_desktop
import typer

from dart_gym.core.errors import DartGymError
from dart_gym.envs.cluster_link import connect
from dart_gym.tasks.requirements.runnable import named_tasks

TASK_TOML = """schema_version = "1.1"

[task]
name = "dart-gym/{name}"
description = {description}
keywords = ["desktop", "gui"]

[agent]
timeout_sec = 1800.0

[verifier]
timeout_sec = 300.0

[environment]
network_mode = "no-network"
cpus = 1
memory_mb = 2048

[environment.healthcheck]
command = "desktop start {task} --seed {seed} --key-hash {key_hash}"
timeout_sec = 150.0
"""
INSTRUCTION = """{instruction}

Do this on a desktop, with the command `desktop`:

- `desktop screenshot screen.png` writes what is on its screen, {width} x {height} pixels.
- `desktop act '{{"kind": "click", "x": 10, "y": 20}}'` does one action. Kinds: click (x, y, button, count),
  move (x, y), drag (path), scroll (x, y, dx, dy), type (text), press (keys), key_down (key), key_up (key),
  wait (seconds), done (answer) when the task is accomplished, fail (reason) when it cannot be.
"""
DOCKERFILE = """FROM {image}
USER root
COPY desktop /usr/local/bin/desktop
RUN chmod 755 /usr/local/bin/desktop
USER user
ENTRYPOINT []
"""
SOLVE = """#!/bin/bash
set -euo pipefail
desktop solve --key /solution/key
"""
TEST = """#!/bin/bash
# Without a score there is no reward: an episode that the environment lost is an error, not a failure of the agent.
set -euo pipefail
score=$(desktop score --key /tests/key)
echo "$score" >/logs/verifier/reward.txt
"""


def write(root: Path, task: str, seed: int, instruction: str, size: tuple[int, int], image: str) -> Path:
    """Write the folder of an episode, anew; `size` is the screen's width and height. Returns it."""
    name, key = f"{task.replace('/', '-')}-{seed}", secrets.token_hex(16)
    folder = root / name
    if folder.exists():
        shutil.rmtree(folder)
    for part in ("environment", "solution", "tests"):
        (folder / part).mkdir(parents=True)
    about = {"name": name, "task": task, "seed": seed, "description": json.dumps(instruction)}
    texts = {
        "task.toml": TASK_TOML.format(**about, key_hash=hashlib.sha256(key.encode()).hexdigest()),
        "instruction.md": INSTRUCTION.format(instruction=instruction, width=size[0], height=size[1]),
        "environment/Dockerfile": DOCKERFILE.format(image=image),
        "environment/desktop": Path(dart_gym_harbor_desktop.__file__).read_text(),
        "solution/solve.sh": SOLVE,
        "solution/key": key,
        "tests/test.sh": TEST,
        "tests/key": key,
    }
    for place, text in texts.items():
        (folder / place).write_text(text)
        (folder / place).chmod(0o755 if place.endswith((".sh", "/desktop")) else 0o644)
    return folder


async def export(root: Path, tasks: list[str], seeds: int, image: str) -> list[Path]:
    """Export every task with every seed; of suites, the tasks that can run.

    Raises:
        DartGymError: there is no such task, it cannot run, or it does not start.
    """
    names = named_tasks(tasks)
    async with connect() as cluster, cluster.session() as session:
        made = []
        for task in names:
            for seed in range(seeds):
                begun = await session.reset(task, seed=seed)
                if begun.terminal is not None:
                    raise DartGymError(f"{task} with seed {seed} did not start: {begun.observation.action_error}")
                height, width = begun.observation.screenshot.shape[:2]
                made.append(write(root, task, seed, begun.observation.instruction, (width, height), image))
        return made


def main(
    directory: Path,
    tasks: Annotated[list[str], typer.Argument(help="Names of tasks, or of suites for those of theirs that can run.")],
    seeds: Annotated[int, typer.Option(min=1, help="How many initial states of each task.")] = 1,
    image: Annotated[str, typer.Option(help="The image of docker/osworld/Dockerfile.")] = "dart-gym",
) -> None:
    """Export tasks of our suites as Harbor tasks."""
    try:
        made = asyncio.run(export(directory, tasks, seeds, image))
    except DartGymError as error:
        raise SystemExit(f"error: {error}") from None
    print(f"{len(made)} tasks in {directory}")


if __name__ == "__main__":
    typer.run(main)
