"""`dart-train ablate`: runs that differ in one switch each, with several seeds, and what they came to.

Invariants:
    - Every variant is checked before the first one starts: names, values, and what contradicts one another.
    - A run is `dart-train run` in a process of its own, with a directory of its own: a run that crashes is named in the
      table and stops no other, a finished run is not repeated, an interrupted run is resumed.
    - Runs that begin alike begin once: demonstrations, warm-up and the test before are played by one and copied.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

import yaml

from dart_gym.core.suggestions import suggest
from dart_gym.utils.processes import die_with_parent
from dart_lab.ablations.ablation_table import Axis
from dart_lab.ablations.shared_start import go_on_from, start_key
from dart_train.config.run_config import ConfigError, RunConfig, dump_config, load_config
from dart_train.run.run_directory import RunDirectory, write_text
from dart_train.run.supervisor import log_tail

BASE = "base"
EVALUATIONS = 10
"""Number of held-out evaluations during each training, unless the configuration says otherwise."""
UNKNOWN_BUDGET = 2000
"""Rollouts that a budget of minutes is taken for, by the distance of evaluations."""

ACTIONS = 6
"""Actions that a rollout is taken for, by the distance of evaluations, where the budget is one of actions."""

Settings = dict[str, Any]
"""Values by dotted key."""


def _on(key: str, on: Any, off: Any, **beside: Any) -> dict[str, Settings]:
    return {"on": {key: on, **beside}, "off": {key: off}}


SWITCHES: dict[str, dict[str, Settings] | Callable[[Any], Settings]] = {
    "pool": _on("data.curation.experience_pool", True, False),
    "dynamic-number": _on("data.curation.dynamic_rollouts", True, False),
    "dynamic-length": _on("data.curation.dynamic_length", True, False),
    "entropy": _on("trainer.top_entropy_quantile", 0.8, 1.0),
    "tis": _on("trainer.tis_clip_max", 1.0, None),
    "staleness": lambda value: {"data.curation.max_staleness": value, "data.curation.batches_ahead": float(value) + 1},
    "kl": lambda value: {"trainer.beta": value},
    "step-limit": _on("trainer.mask_step_limit", True, False),
    "credit": lambda value: {"trainer.advantage": value},
    "sampling": lambda value: {"data.curation.task_sampling": value},
    "retire": _on("data.curation.retire_above", 0.95, None),
    "mini-batches": lambda value: {
        "trainer.mini_batches": value, "trainer.old_logprobs": "recompute" if value != 1 else "current",
    },
    "mode": lambda value: {"rollout.mode": value},
    "forks": {
        "off": {"data.curation.forks.per_group": 0},
        "on": {"data.curation.forks.per_group": 1},
        "pool": {
            "data.curation.forks.per_group": 1, "data.curation.forks.of": "pool", "data.curation.forks.rule": "random",
        },
    },
    "teacher": {
        "none": {"teacher.kind": None},
        "dagger": {"teacher.kind": "dagger"},
        "dagger-rehearsed": {"teacher.kind": "dagger", "teacher.rehearsed_rows": 192},
        "told-oracle": {"teacher.kind": "distillation", "teacher.options": {"told": "oracle"}},
        "told-tree": {"teacher.kind": "distillation", "teacher.options": {"told": "tree"}},
    },
    "shown": {
        "on": {"demonstrations.shown_pages": 40, "trainer.shown_rows": 192},
        "off": {"demonstrations.shown_pages": 0, "trainer.shown_rows": 0},
    },
    "rewards": {"true": {"trainer.shuffle_rewards": False}, "shuffled": {"trainer.shuffle_rewards": True}},
}  # fmt: skip
"""Keys that a switch sets, by its value. A name with a dot is a key of the configuration itself."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One configuration that is compared with the others.

    Attributes:
        name: such as "pool=off".
        settings: what it changes.
    """

    name: str
    settings: Settings


def read_switch(text: str) -> list[Variant]:
    """Return the variants of a `--switch`.

    Args:
        text: "NAME=VALUE,VALUE", or several of them with a space between, of which every combination is a variant.

    Raises:
        ConfigError: it is of another form, a name or a value is unknown, or two of its names set the same key.
    """
    choices = [_values_of(part) for part in re.split(r"\s+(?=[\w.-]+=)", text.strip())]
    owners: dict[str, str] = {}
    for name, options in choices:
        for key in {key for option in options for key in option.settings}:
            if key in owners:
                what = "is given twice" if owners[key] == name else f"and switch {owners[key]!r} both set {key}"
                raise ConfigError(f"switch {name!r} {what}: give one of them")
            owners[key] = name
    return [
        Variant(
            " ".join(option.name for option in combined),
            {key: value for option in combined for key, value in option.settings.items()},
        )
        for combined in itertools.product(*(options for _, options in choices))
    ]


def _values_of(text: str) -> tuple[str, list[Variant]]:
    """Return a switch's name, and one variant for each of its values."""
    name, equals, values = text.partition("=")
    if not equals or not values:
        raise ConfigError(f"--switch {text!r} is not NAME=VALUE,VALUE, such as pool=on,off")
    switch = SWITCHES.get(name)
    if switch is None and "." not in name:
        known = suggest(
            name, SWITCHES, count=2, otherwise=f"there are: {', '.join(SWITCHES)}, and every key with a dot"
        )
        raise ConfigError(f"unknown switch {name!r}; {known}")
    variants = []
    for value in values.split(","):
        if isinstance(switch, dict):
            if value not in switch:
                raise ConfigError(f"switch {name!r} has no value {value!r}: it is {' or '.join(switch)}")
            settings = switch[value]
        else:
            parsed = yaml.safe_load(value)
            try:
                settings = switch(parsed) if switch else {name: parsed}
            except (TypeError, ValueError):
                raise ConfigError(f"switch {name!r} has no value {value!r}") from None
        variants.append(Variant(f"{name}={value}", settings))
    return name, variants


def variants_of(switches: Sequence[str]) -> list[Variant]:
    """The base, and the variants of all switches.

    Raises:
        ConfigError: a switch cannot be read, or a variant is given twice.
    """
    found = [Variant(BASE, {})]
    for variant in itertools.chain.from_iterable(map(read_switch, switches)):
        if variant.name in {other.name for other in found}:
            raise ConfigError(f"--switch {variant.name!r} is given twice")
        found.append(variant)
    return found


def read_budget(text: str) -> tuple[Axis, Settings]:
    """Return what a budget such as "2000rollouts", "20minutes" or "12000actions" counts, and what it sets.

    Raises:
        ConfigError: if it is not of that form.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(rollouts|minutes|actions)", text)
    if not match or float(match[1]) <= 0 or (match[2] != "minutes" and "." in match[1]):
        raise ConfigError(f"--budget {text!r} is neither of the form 2000rollouts nor 20minutes nor 12000actions")
    axis = cast("Axis", match[2])
    amount = float(match[1]) if axis == "minutes" else int(match[1])
    return axis, {f"rollout.budget_{name}": amount if name == axis else None for name in get_args(Axis)}


@dataclass(frozen=True, slots=True)
class Planned:
    """One run of an ablation; all runs of a seed have one name, which their rows and files carry."""

    variant: str
    config: RunConfig

    @property
    def label(self) -> str:
        """Return what it is called, and its directory."""
        return f"{re.sub('[^A-Za-z0-9._-]+', '-', self.variant)}/{self.config.name}"


def planned_runs(
    config: Path, overrides: Sequence[str], variants: Sequence[Variant], *, seeds: int, budget: Settings
) -> list[Planned]:
    """All runs, seed by seed, so that a short night has something of every variant. Equal variants are run once.

    Raises:
        ConfigError: a variant is no configuration; the message names it.
    """
    runs, known = [], dict[str, str]()
    for seed, variant in itertools.product(range(seeds), variants):
        values = {**budget, **variant.settings, "seed": seed}
        items = [*overrides, *(f"{key}={json.dumps(value)}" for key, value in values.items())]
        try:
            loaded = _comparable(load_config(config, items))
        except ConfigError as error:
            raise ConfigError(f"variant {variant.name}: {' '.join(str(error).split())}") from error
        if known.setdefault(loaded.model_dump_json(), variant.name) == variant.name:
            runs.append(Planned(variant.name, loaded.model_copy(update={"name": f"s{seed}"})))
    return runs


def _comparable(config: RunConfig) -> RunConfig:
    """Return the configuration with what a comparison needs only, and with evaluations during the training."""
    monitor, actions = config.evaluation.monitor, config.rollout.budget_actions
    budget = config.rollout.budget_rollouts or (actions // ACTIONS if actions else UNKNOWN_BUDGET)
    every = monitor.every_rollouts or max(1, budget // EVALUATIONS)
    watched = {"monitor": monitor.model_copy(update={"every_rollouts": every})}
    evaluation = config.evaluation.model_copy(update={**watched, "beside": (), "greedy": False})
    controls = config.controls.model_copy(update={"supervised": False, "phases": {}})
    cluster = config.cluster.model_copy(
        update={"desktops": max(config.cluster.desktops, config.rollout.workers + monitor.workers)}
    )
    return config.model_copy(update={"evaluation": evaluation, "controls": controls, "cluster": cluster})


def run_all(runs: Sequence[Planned], root: Path, *, side_by_side: int, say: Callable[[str], None]) -> Mapping[str, str]:
    """Start or resume every run; returns why those crashed that did, by name."""
    crashed, begun = dict[str, str](), dict[str, str]()
    keys = [start_key(one.config) for one in runs]
    first = {key: one.config for key, one in reversed([*zip(keys, runs, strict=True)])}
    locks = {key: threading.Lock() for key in keys}

    def begin(planned: Planned, run: RunDirectory) -> str:
        """Let a run that has not begun start from the state that it shares with others; why that crashed, or ""."""
        key = start_key(planned.config)
        if not key or keys.count(key) < 2 or run.root.exists():
            return ""
        with locks[key]:
            if key not in begun:
                begun[key] = _run(first[key], root / "starts" / key, "--start-only")
            if not begun[key]:
                go_on_from(RunDirectory(root / "starts" / key / planned.config.name), planned.config, run)
        return begun[key]

    def one(planned: Planned) -> None:
        run = RunDirectory(root / planned.label)
        if run.figures.exists():
            say(f"{planned.label}: done before")
            return
        say(f"{planned.label}: runs, log in {run.root}.log")
        why = begin(planned, run) or _run(planned.config, run.root.parent)
        if why:
            crashed[planned.label] = why
        say(f"{planned.label}: {'crashed: ' + why if why else 'done'}")

    with ThreadPoolExecutor(side_by_side) as threads:
        for _ in threads.map(one, runs):
            pass
    return crashed


def _run(config: RunConfig, runs_dir: Path, *options: str) -> str:
    """Go through one run as a process; the last line of one that crashed, or ""."""
    path, log = runs_dir / f"{config.name}.yaml", runs_dir / f"{config.name}.log"
    write_text(path, dump_config(config))
    command = [sys.executable, "-m", "dart_train", "run", str(path), "--runs-dir", str(runs_dir), "--plain", *options]
    with log.open("ab") as file:
        process = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, preexec_fn=die_with_parent())
    lines = [line for line in log_tail(log).splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("error: ")] or lines or [f"ended with {process.returncode}"]
    return said[-1] if process.returncode else ""
