"""How many tokens run through the model for the rows of recorded groups: as they are laid out, and as prefix trees.

The trainer merges steps that extend one another into chains, and lets the chains of a group that begin with the same
prompt share it (`dart_train.trainer.batches.samples`). A prefix tree would share every common beginning: the system
prompt and instruction of chains after a window dropped screenshots, and first actions that several rollouts took and
that led to the same screen. It is the least that any exact sharing of beginnings can reach.

Runs of small screens are counted as they were recorded, and as if their prompts kept more screenshots. Groups of a 7B
model on OSWorld's screens are made up: rollouts that begin with the same screen and never meet again, flat and forked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

import numpy as np

from dart_agent.episodes.trajectory import Step, Trajectory
from dart_agent.models.model_tokens import ModelTokens
from dart_lab.reporting.report import Report
from dart_lab.train.made_up_steps import Window, record_steps
from dart_train.core.train_errors import TrainingError
from dart_train.data.manager.run_data import RunData
from dart_train.trainer.batches.samples import Sample, chains, rows

UNLIMITED = 1 << 62
LONGEST = 16384
"""The default of `trainer.micro_batch_tokens`."""
WINDOWS = {"sliding": Window(5), "blocks": Window(5, block=3)}
"""Five screenshots at most: the oldest dropped with each step, and three at once (`agent.block: 3`)."""
SCREEN = 2691
"""Tokens of a screenshot of 1932x1092."""
RESPONSE = 150
OPENING = 600
"""About as many tokens as UI-TARS's prompt with an instruction has."""
MEMBERS = 8
STEPS = 15
FORKED_AT = 7


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens that run through the model.

    Attributes:
        steps: every step in a row of its own.
        merged: steps that extend one another in one row.
        rows: as the trainer lays rows out, which share first prompts, too.
        tree: one prefix tree for each group.
        fitting_rows: `rows` that fit into a micro-batch.
        fitting_tree: the same chains in trees that fit into one, those that begin alike together.
    """

    steps: int = 0
    merged: int = 0
    rows: int = 0
    tree: int = 0
    fitting_rows: int = 0
    fitting_tree: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(*(mine + others for mine, others in zip(astuple(self), astuple(other), strict=True)))


def count(samples: Sequence[Sample], image_pad_id: int, limit: int = LONGEST) -> Tokens:
    """Count the tokens of a group's samples, with rows and trees of any length and of at most `limit` tokens."""
    longest = [samples[chain.samples[-1]] for chain in chains(samples)]  # the others begin these
    return Tokens(
        sum(sample.length for sample in samples),
        sum(row.length for row in rows(samples, UNLIMITED, share=False)),
        sum(row.length for row in rows(samples, UNLIMITED)),
        tree_tokens(longest, image_pad_id),
        sum(row.length for row in rows(samples, limit)),
        tree_tokens(longest, image_pad_id, limit),
    )


def tree_tokens(samples: Sequence[Sample], image_pad_id: int, limit: int = UNLIMITED) -> int:
    """Count the nodes of prefix trees of samples; pads of different images are different tokens.

    Args:
        samples: of one group.
        image_pad_id: of the model.
        limit: most nodes of a tree, unless one sample has more; another tree is begun with the sample that would be
            too much.
    """
    names = dict.fromkeys(name for one in samples for name in one.image_hashes)
    images = {name: number for number, name in enumerate(names, 1)}
    found = tree = 0
    before: list[int] = []
    for own in sorted(list(_keys(sample, image_pad_id, images)) for sample in samples):
        pairs = enumerate(zip(before, own, strict=False))
        shared = next((place for place, (left, right) in pairs if left != right), min(len(before), len(own)))
        new = len(own) - shared
        if tree and tree + new > limit:
            found += tree
            tree = 0
            new = len(own)
        tree += new
        before = own
    return found + tree


def groups(trajectories: Iterable[Trajectory]) -> dict[str, list[Sample]]:
    """Return the samples of each group that has any."""
    found: dict[str, list[Sample]] = defaultdict(list)
    for number, trajectory in enumerate(trajectories):
        for step in trajectory.steps:
            if step.response_ids and step.prompt_ids:
                found[trajectory.group_key].append(Sample.from_step(step, trajectory=number))
    return dict(found)


def with_window(steps: Sequence[Step], instruction: str, tokens: ModelTokens, window: Window) -> list[Step]:
    """Return an episode's steps with prompts that keep other screenshots; the responses are the recorded ones."""
    hashes = [step.image_hashes[-1] for step in steps]
    pads = [_last_run(step.prompt_ids, tokens.image_pad_id) for step in steps]
    return record_steps(tokens, instruction, hashes, pads, [step.response_ids for step in steps], window)


def made_up(tokens: ModelTokens, window: Window, *, forked_at: int = 0) -> list[Sample]:
    """Return the samples of a group of a 7B model's rollouts.

    Args:
        tokens: whose words stand for all words.
        window: of the prompts.
        forked_at: the step at which a fork's continuations begin, whose history is one; only what follows is trained.
    """
    words = tokens.encode("abcdefghijklmnopqrstuvwxyz")
    history = np.random.default_rng(MEMBERS).choice(words, (STEPS, RESPONSE))
    found = []
    for member in range(MEMBERS):
        own = np.random.default_rng(member).choice(words, (STEPS, RESPONSE))
        drawn = [(history if turn < forked_at else own)[turn].tolist() for turn in range(STEPS)]
        hashes = [f"{turn}" if turn <= forked_at else f"{member}-{turn}" for turn in range(STEPS)]
        steps = record_steps(tokens, "a" * OPENING, hashes, [SCREEN] * STEPS, drawn, window)
        found += [Sample.from_step(step, trajectory=member) for step in steps[forked_at:]]
    return found


def measure(trajectories: Sequence[Trajectory], tokens: ModelTokens, limit: int = LONGEST) -> Report:
    """Count the tokens of recorded groups, and of made-up ones.

    Args:
        trajectories: of a run.
        tokens: of its model.
        limit: most tokens of a micro-batch.

    Raises:
        TrainingError: if no steps are recorded.
    """
    recorded = groups(trajectories)
    if not recorded:
        raise TrainingError("no recorded steps: give the directory of a run whose trajectories are still there")
    pad = tokens.image_pad_id
    counted = {"recorded": sum((count(samples, pad, limit) for samples in recorded.values()), Tokens())}
    for name, window in WINDOWS.items():
        anew = groups(
            replace(one, steps=tuple(with_window(one.steps, one.instruction, tokens, window)))
            for one in trajectories
            if one.steps and all(step.image_hashes and step.response_ids for step in one.steps)
        )
        counted[f"recorded_{name}"] = sum((count(samples, pad, limit) for samples in anew.values()), Tokens())
    counted |= count_made_up(tokens, limit)
    keys = {"groups": float(len(recorded)), "steps": float(sum(map(len, recorded.values())))}
    for name, found in counted.items():
        keys |= {f"{name}.tokens_{part.name}": float(getattr(found, part.name)) for part in fields(found)}
        keys[f"{name}.tree_over_rows"] = found.tree / max(found.rows, 1)
        keys[f"{name}.fitting_tree_over_rows"] = found.fitting_tree / max(found.fitting_rows, 1)
    notes = [
        "tokens_rows: rows as the trainer lays them out, were they of any length; tokens_tree: one prefix tree for "
        "each group, the least that exact sharing of beginnings can reach; fitting: rows and trees of at most "
        f"{limit} tokens.",
        f"recorded: as the run's prompts were; sliding, blocks: with up to five screenshots. flat, forked: made up, "
        f"{MEMBERS} rollouts of {STEPS} steps, screens of {SCREEN} tokens, responses of {RESPONSE}, an opening of "
        f"about {OPENING}; forked: from step {FORKED_AT} on.",
    ]
    return Report("rows", keys, {}, notes)


def count_made_up(tokens: ModelTokens, limit: int) -> dict[str, Tokens]:
    """Count the tokens of made-up groups of each window, flat and forked."""
    pad = tokens.image_pad_id
    return {
        f"{kind}_{name}": count(made_up(tokens, window, forked_at=forked_at), pad, limit)
        for kind, forked_at in (("flat", 0), ("forked", FORKED_AT))
        for name, window in WINDOWS.items()
    }


def of_run(directory: Path, limit: int = LONGEST) -> Report:
    """Count the tokens of a run's recorded rollouts.

    Args:
        directory: of the run.
        limit: most tokens of a micro-batch.

    Raises:
        TrainingError: if the run has no version with a tokenizer, or no recorded steps.
    """
    found = next(iter(sorted((directory / "checkpoints").glob("*/tokenizer.json"))), None)
    if found is None:
        raise TrainingError(f"{directory} has no checkpoints/*/tokenizer.json: give the directory of a run")
    place = directory.resolve() / "data"
    with RunData.open(f"sqlite:///{place / 'dart.sqlite'}", place, directory.resolve().name) as data:
        return measure(list(data.trajectories()), ModelTokens.load(found.parent), limit)


def _last_run(ids: Sequence[int], pad: int) -> int:
    """How many pads the last image of a prompt has."""
    end = len(ids) - ids[::-1].index(pad)
    begin = end
    while begin and ids[begin - 1] == pad:
        begin -= 1
    return end - begin


def _keys(sample: Sample, image_pad_id: int, images: Mapping[str, int]) -> Iterator[int]:
    """The inputs of a sample: ids, and for the pads of an image its number below 0."""
    hashes = iter(sample.image_hashes)
    image, before = 0, -1
    for token in (*sample.prompt_ids, *sample.response_ids[:-1]):
        if token == image_pad_id and before != image_pad_id:
            image = -images[next(hashes)]
        yield image if token == image_pad_id else token
        before = token
