"""The directory of an evaluation: its settings and the finished episodes. A killed evaluation resumes from it.

    evaluation.json         the plan: policy, settings, tasks, seeds
    trajectories/, images/  the recorded episodes (`dart_agent.episodes.trajectory_format`)
    scores.json             written when all episodes are done

Invariants:
    - One process writes to a directory at a time (a lock that ends with the process).
    - Episodes of another policy, other settings or another definition of a task are never mixed in: that is an error.
    - An episode that was lost is played again by the next run; one that counts never is.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dart_agent.episodes.episode_files import (
    EpisodeWriter,
    RecordError,
    episode_directory,
    find_episodes,
    read_episode,
    write_json,
)
from dart_agent.episodes.play_list import EpisodeKey
from dart_agent.episodes.trajectory import Trajectory
from dart_agent.episodes.trajectory_format import FORMAT, PARTIAL
from dart_agent.models.model_directory import Decoder
from dart_gym.core.errors import ConfigurationError, TaskError
from dart_gym.tasks.catalog import registry
from dart_gym.utils.durable_files import make_directories

MANIFEST = "evaluation.json"


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of an evaluation; `settings` is plain JSON with everything else that changes the policy. See `play`."""

    policy: str
    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    max_steps: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


class EvaluationDirectory:
    """Episodes of one plan on disk, a context manager to write; `decode` gives the viewer the texts of token ids."""

    def __init__(self, root: str | Path, plan: Plan, decode: Decoder | None = None) -> None:
        self.root = Path(root)
        self.plan = plan
        self._decode = decode
        self._hashes: dict[str, str] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> EvaluationDirectory:
        """Lock the directory, see that it is of this plan, tidy up. Raises `ConfigurationError`, `RecordError`."""
        try:
            make_directories(self.root)
            lock = self._stack.enter_context((self.root / ".lock").open("w"))
        except OSError as error:
            raise RecordError(f"cannot write {self.root}: {error}; choose another --out") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._stack.close()
            raise ConfigurationError(f"another process evaluates into {self.root}: choose another --out") from error
        try:
            self._check_plan()
            for partial in [path for path in find_episodes(self.root, partial=True) if path.name.endswith(PARTIAL)]:
                shutil.rmtree(partial)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def known(self) -> dict[EpisodeKey, Trajectory]:
        """The episodes of the plan that are done and count, without steps."""
        found: dict[EpisodeKey, Trajectory] = {}
        for task in self.plan.tasks:
            for seed in self.plan.seeds:
                path = episode_directory(self.root, task, seed)
                if not path.is_dir():
                    continue
                outcome = read_episode(path, steps=False)
                self._check_hash(outcome)
                if not outcome.lost_by:
                    found[task, seed] = outcome
        return found

    def recorder(self, key: EpisodeKey) -> EpisodeWriter:
        """The writer of one episode."""
        return EpisodeWriter(self.root, *key, policy=self.plan.policy, app=app_of(key[0]), decode=self._decode)

    def finish(self, recorder: EpisodeWriter, trajectory: Trajectory) -> None:
        """Complete an episode.

        Raises:
            ConfigurationError: if the task has changed since the evaluation began.
        """
        self._check_hash(trajectory)
        recorder.finish(trajectory)

    def write_scores(self, scores: Mapping[str, Any]) -> None:
        """Write `scores.json`, whole or not at all."""
        write_json(self.root / "scores.json", scores)

    def _check_hash(self, outcome: Trajectory) -> None:
        if not outcome.task_hash:  # it was lost before the task was there
            return
        known = self._hashes.setdefault(outcome.task_id, outcome.task_hash)
        if known != outcome.task_hash:
            raise ConfigurationError(
                f"the task {outcome.task_id} has changed since episodes of {self.root} were played "
                f"({known} then, {outcome.task_hash} now): their scores cannot be compared; choose another --out"
            )

    def _check_plan(self) -> None:
        asked = json.loads(json.dumps({"format": FORMAT, **asdict(self.plan)}))
        path = self.root / MANIFEST
        if path.exists():
            begun = read_manifest(self.root)
            for name in ("policy", "max_steps", "settings"):
                if begun.get(name) != asked[name]:
                    raise ConfigurationError(
                        f"{self.root} was begun with {_difference(name, begun.get(name), asked[name])}: "
                        "resume with the same settings, or choose another --out"
                    )
        write_json(path, asked)


def read_manifest(root: str | Path) -> dict[str, Any]:
    """Read the plan that an evaluation was begun with.

    Raises:
        RecordError: if there is no plan, or it is damaged.
    """
    path = Path(root) / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RecordError(f"{root} is not the directory of an evaluation: it has no {MANIFEST}") from error
    except (OSError, ValueError) as error:
        raise RecordError(f"cannot read {path}: {error}") from error
    if not isinstance(manifest, dict):
        raise RecordError(f"{path} is damaged: it holds no JSON object")
    if manifest.get("format") != FORMAT:
        raise RecordError(
            f"{root} was written by another version of this package (its format is {manifest.get('format', 1)!r}, this "
            f"version reads {FORMAT}): evaluate again, into another directory"
        )
    if not {"policy", "max_steps"} <= manifest.keys() or not isinstance(manifest.get("settings"), dict):
        raise RecordError(f"{path} is damaged: a part of the plan is missing")
    return manifest


def has_no_plan(root: str | Path) -> bool:
    """Return whether a directory holds episodes that were not played as an evaluation, such as imported ones.

    Raises:
        RecordError: if these are episodes of several directories, which may be of several policies.
    """
    if (Path(root) / MANIFEST).exists():
        return False
    homes = dict.fromkeys(path.parents[1] for path in find_episodes(root))
    if len(homes) > 1:
        raise RecordError(f"{root} holds {len(homes)} sets of episodes: name one of them, such as {next(iter(homes))}")
    return bool(homes)


def read_outcomes(root: str | Path) -> list[Trajectory]:
    """Read all complete episodes of an evaluation, or of an import, without steps.

    Raises:
        RecordError: if there is no evaluation and no episode, or it is damaged.
    """
    if not has_no_plan(root):
        read_manifest(root)
    return [read_episode(path, steps=False) for path in find_episodes(root)]


def app_of(task_id: str) -> str:
    """The application of a task as OSWorld groups them: "multi_apps" for several, else its suite if it names none."""
    try:
        task = registry.get_task(task_id)
    except TaskError:
        return task_id.partition("/")[0]
    apps: Sequence[str] = task.raw.get("related_apps") or ()
    if len(apps) > 1:
        return "multi_apps"
    return apps[0] if apps else str(task.raw.get("snapshot") or task.suite)


def _difference(name: str, begun: Any, asked: Any) -> str:
    if isinstance(begun, dict) and isinstance(asked, dict):
        for key in sorted({*begun, *asked}):
            if begun.get(key) != asked.get(key):
                return f"{key} {begun.get(key)!r}, not {asked.get(key)!r}"
    return f"{name} {begun!r}, not {asked!r}"
