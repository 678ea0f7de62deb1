"""GUI-Bee's claim, small: a grounder that is continued on what was explored of a novel application is better there.

A tiny backbone with a head is trained whole on screens of some applications, then continued on explored screens of
novel ones, mixed with as many of the old ones; beside it, for as many steps, on old ones alone. All are asked about
screens that were held out of both: every third state of an application, as its tree tells it, so that nothing was
trained on in that state. Elements of it may have been, on other screens; questions `unseen` are those of which the
collector would say that no pair that was trained on is like them (phrase, size and look).
"""

from __future__ import annotations

import asyncio
import random
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from dart_gym_grounding_data.collector import task_named
from dart_gym_grounding_data.explorer import Explorer
from dart_gym_grounding_data.pairs import Pairs
from dart_gym_grounding_data.screen_elements import Screen
from dart_gym_grounding_data.task_place import TaskPlace
from PIL import Image

from dart_agent.grounding.candidate import Box, Query
from dart_agent.grounding.pointer_model import PointerGrounder, PointerModel
from dart_agent.grounding.screenspot import GroundingItem
from dart_agent.models.tiny_model import build_tiny_model
from dart_gym.utils.rates import wilson_interval
from dart_lab.agent.grounding_bench import UNTIL_TIME, train_head
from dart_lab.agent.grounding_start import CONFIG
from dart_lab.reporting.report import Aim, Report

WIDTH, HELD = 448, 3  # pixels of the screens that the model sees, 14 patches; one state in HELD is held out
BATCH = 64  # the questions about a screen share the tower's work
FIRST_RATE = 2e-3
CONTINUED_RATE = 1e-3
_RESAMPLED = 2000
Progress = Callable[[str], None]
Screens = dict[str, Sequence[Screen]]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of the measurement: steps of each exploration, seconds of processor time of both trainings."""

    old: tuple[str, ...] = ("mousepad", "zenity-list", "zenity-forms", "eog", "evince")
    novel: tuple[str, ...] = ("galculator", "file-roller")
    steps: int = 60
    seconds: float = 900.0
    continued: float = 300.0


@dataclass(frozen=True, slots=True)
class Part:
    """An application's pairs to train on, and those to ask about; `unseen`: which of these are like none trained on."""

    learn: list[GroundingItem]
    ask: list[GroundingItem]
    unseen: list[bool]


async def explored(name: str, steps: int, seed: int = 0) -> list[Screen]:
    """The distinct screens of one exploration."""
    place = TaskPlace(task_named(name))
    try:
        return [node.screen for node in (await Explorer(place, steps, seed).run()).nodes]
    finally:
        await place.close()


def parted(name: str, screens: Sequence[Screen], seed: int = 0) -> Part:
    """Split an application's screens by the state that their trees tell. Pure."""
    states = sorted({screen.tree_key for screen in screens})
    random.Random(seed).shuffle(states)
    held = frozenset(states[: len(states) // HELD])
    learnt, asked = Pairs(name), Pairs(name)
    for number, screen in enumerate(screens):
        (asked if screen.tree_key in held else learnt).add(number, screen)
    learn = [*learnt.items]
    for number, screen in enumerate(screens):
        if screen.tree_key in held:
            learnt.add(number, screen)
    new = {(item.name, item.description) for item in learnt.items[len(learn) :]}
    unseen = [(item.name, item.description) in new for item in asked.items]
    return Part(_shrunk(learn), _shrunk(asked.items), unseen)


def _shrunk(items: Iterable[GroundingItem]) -> list[GroundingItem]:
    """The same on screens of WIDTH pixels, of which each is made once."""
    made: dict[int, np.ndarray] = {}
    found = []
    for item in items:
        (width, height), image = item.screen, item.screenshot()
        size, share = (WIDTH, round(height * WIDTH / width)), WIDTH / width
        if id(image) not in made:
            made[id(image)] = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.LANCZOS))
        boxes = tuple(Box(*(share * edge for edge in (b.left, b.top, b.right, b.bottom))) for b in item.boxes)
        found.append(replace(item, boxes=boxes, image=made[id(image)], screen=size))
    return found


def mixed(old: Sequence[GroundingItem], new: Sequence[GroundingItem]) -> list[GroundingItem]:
    """Return all items of both lists, repeating the shorter one until both have about the same length. Pure."""
    few, many = sorted((old, new), key=len)
    return [*many, *list(few) * round(len(many) / len(few))]


def measure(sizes: Sizes, progress: Progress, screens: Screens | None = None) -> Report:
    """Explore what is not given, train, continue, ask before and after."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    parts = {}
    for name in (*sizes.old, *sizes.novel):
        found = (screens or {}).get(name) or asyncio.run(explored(name, sizes.steps))
        part = parts[name] = parted(name, found)
        progress(f"{name}: {len(found)} screens, {len(part.learn)} pairs to learn, {len(part.ask)} to ask about")
    old, new = ([item for name in names for item in parts[name].learn] for names in (sizes.old, sizes.novel))
    with tempfile.TemporaryDirectory() as place:
        start = PointerModel(_tiny(Path(place) / "tiny", [*old, *new]), begin="", dtype="float32")
        progress(f"the grounder, {sizes.seconds:g} s")
        steps = {"first": train_head(start, old, sizes.seconds, True, FIRST_RATE, batch=min(BATCH, len(old)))}
        hits = {"before": _ask(start, parts)}
        begun = start.save(Path(place) / "begun")
        for way, items in (("after", mixed(old, new)), ("old_only", old)):
            progress(f"{way}, {sizes.continued:g} s")
            model = PointerModel(begun, dtype="float32")
            most = steps.get("after", UNTIL_TIME)
            steps[way] = train_head(model, items, sizes.continued, True, CONTINUED_RATE, most, min(BATCH, len(items)))
            hits[way] = _ask(model, parts)
    return report_of(sizes, parts, hits, steps)


def _tiny(root: Path, items: Iterable[GroundingItem]) -> Path:
    """An untrained model that has a token for each word of the pairs that are trained on."""
    words = sorted({word for item in items for word in re.findall(r"[^\W\d_]{2,}", item.description)})
    extra = tuple(dict.fromkeys((*CONFIG.extra_words, *words)))
    return build_tiny_model(root, config=replace(CONFIG, layers=2, extra_words=extra))


Hits = dict[str, list[bool]]


def _ask(model: PointerModel, parts: dict[str, Part]) -> Hits:
    """Return whether the first candidate is right, for each question of each application."""
    found: Hits = {}
    for name, part in parts.items():
        queries = [Query(item.description, item.screenshot()) for item in part.ask]
        answers = asyncio.run(PointerGrounder(model).locate_batch(queries))
        found[name] = [
            any(box.contains(at.x, at.y) for at in answer.candidates[:1] for box in item.boxes)
            for item, answer in zip(part.ask, answers, strict=True)
        ]
    return found


def gain(before: Sequence[bool], after: Sequence[bool], groups: Sequence[str]) -> tuple[float, float, float]:
    """The difference in points of 100, with a 95 % interval: a bootstrap over groups, which are screens. Pure."""
    by_group: dict[str, list[int]] = {}
    for one, other, group in zip(before, after, groups, strict=True):
        by_group.setdefault(group, []).append(int(other) - int(one))
    sums = [(sum(of), len(of)) for of in by_group.values()]
    rng = random.Random(0)

    def mean(drawn: Sequence[tuple[int, int]]) -> float:
        return 100 * sum(total for total, _ in drawn) / max(1, sum(count for _, count in drawn))

    drawn = sorted(mean(rng.choices(sums, k=len(sums))) for _ in range(_RESAMPLED)) if sums else [0.0]
    return mean(sums), drawn[len(drawn) // 40], drawn[-1 - len(drawn) // 40]


def report_of(sizes: Sizes, parts: dict[str, Part], hits: dict[str, Hits], steps: dict[str, int]) -> Report:
    """Accuracies and their differences. Pure."""
    keys: dict[str, float] = {f"ground.novel_steps.{way}": count for way, count in steps.items()}
    asked = {"novel": sizes.novel, "elsewhere": sizes.old} | {f"novel.{name}": (name,) for name in sizes.novel}
    for key, names in asked.items():
        keys |= _keys_of(f"ground.{key}", [(parts[n], {way: of[n] for way, of in hits.items()}) for n in names])
    unseen = []
    for name in sizes.novel:
        chosen = [row for row, new in enumerate(parts[name].unseen) if new]
        part = replace(parts[name], ask=[parts[name].ask[row] for row in chosen])
        unseen.append((part, {way: [of[name][row] for row in chosen] for way, of in hits.items()}))
    keys |= _keys_of("ground.novel_unseen", unseen)
    aims = {"ground.novel_gain": Aim(10, at_most=False), "ground.elsewhere_gain": Aim(-2, at_most=False)}
    notes = [
        f"old: {', '.join(sizes.old)}; novel: {', '.join(sizes.novel)}; gains in points of 100; .low, .high: 95 %",
        f"{sizes.seconds:g} and {sizes.continued:g} s of processor time, one thread; one state in {HELD} is held out",
    ]
    return Report("novel", keys, aims=aims, notes=notes)


def _keys_of(key: str, asked: Sequence[tuple[Part, Hits]]) -> dict[str, float]:
    """Accuracy of each way, and what is gained over the grounder that was not continued."""
    screens = [item.name for part, _ in asked for item in part.ask]
    got = {way: [hit for _, hits in asked for hit in hits[way]] for way in ("before", "after", "old_only")}
    keys: dict[str, float] = {f"{key}.questions": len(screens)}
    for way, hits in got.items():
        low, high = wilson_interval(sum(hits), len(hits))
        keys |= {f"{key}.{way}": sum(hits) / max(1, len(hits)), f"{key}.{way}.low": low, f"{key}.{way}.high": high}
    for way, name in (("after", f"{key}_gain"), ("old_only", f"{key}_gain_old_only")):
        keys[name], keys[f"{name}.low"], keys[f"{name}.high"] = gain(got["before"], got[way], screens)
    return keys
