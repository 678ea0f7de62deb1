"""Samples: one step each, laid out in rows so that equal beginnings are computed once.

A step's prompt usually is the whole of the step before (its prompt and its response) and a new screenshot. Such steps
become one *chain*: one sequence with several trained spans, at the cost of its longest step. Chains that begin with
the same prompt (the rollouts of a group start from the same screen) may share a *row*: the prompt once, then each
chain as a branch that sees the prompt and itself, never its neighbours.

Pure functions of ids and image hashes; nothing here touches tensors or files.

Invariants:
    - Every sample is in exactly one chain, every chain in exactly one row.
    - Two beginnings are equal when all their ids and all hashes of their images are: pads of different images have
      the same ids, so ids alone would merge what differs.
    - A row is never longer than `max_tokens`, unless a single sample is; a chain is as long as its longest sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dart_agent.engines.base.engine_replies import HIGHEST_LOGPROB, LOWEST_LOGPROB
from dart_agent.episodes.trajectory import Step


@dataclass(frozen=True, slots=True)
class Sample:
    """One step to train on.

    Attributes:
        response_ids: sampled ids, the stop token included; at least one.
        logprobs: behaviour log-probability of each; empty where there was no behaviour policy.
        trajectory: number of its trajectory in the optimizer batch; only steps of one trajectory become a chain.
        supervised: whether it is a demonstration, whose loss is the cross-entropy, instead of a rollout's step.
        entropy: mean over the response of the entropy that each token was sampled with, in nats; None where the engine
            did not record it.
        routing: packed experts that computed each sampled token in the engine; empty where it did not record them.
        taught: whether its response is a teacher's, in a state that the policy came to; then it is supervised too.
        teacher_logprobs: a teacher's log-probability of each id; empty without one.
    """

    prompt_ids: tuple[int, ...]
    image_hashes: tuple[str, ...]
    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    advantage: float = 0.0
    group: int = 0
    trajectory: int = 0
    weight: float = 1.0
    version: int = 0
    stale: bool = False
    supervised: bool = False
    entropy: float | None = None
    routing: bytes = b""
    taught: bool = False
    teacher_logprobs: tuple[float, ...] = ()

    @classmethod
    def from_step(cls, step: Step, *, advantage: float = 0.0, group: int = 0, trajectory: int = 0) -> Sample:
        """The sample of a recorded step."""
        return cls(
            step.prompt_ids,
            step.image_hashes,
            step.response_ids,
            step.logprobs,
            advantage,
            group,
            trajectory,
            version=step.version[0],
            entropy=step.entropy,
            routing=step.routing,
        )

    @property
    def length(self) -> int:
        """Tokens that run through the model: the last of a response predicts nothing and is no input."""
        return len(self.prompt_ids) + len(self.response_ids) - 1

    def extends(self, earlier: Sample) -> bool:
        """Return whether its prompt begins with the whole of another sample, images included."""
        start = len(earlier.prompt_ids)
        end = start + len(earlier.response_ids)
        return (
            len(self.prompt_ids) >= end
            and self.image_hashes[: len(earlier.image_hashes)] == earlier.image_hashes
            and self.prompt_ids[start:end] == earlier.response_ids
            and self.prompt_ids[:start] == earlier.prompt_ids
        )


def bad_logprobs(sample: Sample) -> str:
    """Return what is wrong with the recorded log-probabilities, or "". It is no error if there are none."""
    if not sample.logprobs:
        return ""
    if len(sample.logprobs) != len(sample.response_ids):
        return f"{len(sample.logprobs)} log-probabilities for {len(sample.response_ids)} sampled tokens"
    for logprob in sample.logprobs:
        # Rounding gives a certain token a little more than 0; an engine that returns more is another quantity.
        if not LOWEST_LOGPROB <= logprob <= HIGHEST_LOGPROB:
            return f"a log-probability of {logprob}: the engine returned something else, or failed"
    return ""


@dataclass(slots=True)
class Chain:
    """Samples that each extend the one before, by their places in the list."""

    samples: list[int]


@dataclass(slots=True)
class Row:
    """Chains that begin with the same prompt, and how many tokens they are together."""

    chains: list[Chain]
    length: int


def chains(samples: Sequence[Sample], *, merge: bool = True) -> list[Chain]:
    """Group steps of one trajectory whose prompts extend one another; in any order, since their lengths tell."""
    by_trajectory: dict[int, list[Chain]] = {}
    for index in sorted(range(len(samples)), key=lambda index: len(samples[index].prompt_ids)):
        own = by_trajectory.setdefault(samples[index].trajectory, [])
        longer = (chain for chain in reversed(own) if merge and samples[index].extends(samples[chain.samples[-1]]))
        chain = next(longer, None)
        if chain is None:
            own.append(Chain([index]))
        else:
            chain.samples.append(index)
    return sorted((chain for own in by_trajectory.values() for chain in own), key=lambda chain: min(chain.samples))


def rows(samples: Sequence[Sample], max_tokens: int, *, merge: bool = True, share: bool = True) -> list[Row]:
    """Chains in rows of at most `max_tokens`; with `share` those with equal first prompts share a row."""
    open_rows: dict[tuple[tuple[int, ...], tuple[str, ...]], Row] = {}
    done: list[Row] = []
    for chain in chains(samples, merge=merge):
        first, last = samples[chain.samples[0]], samples[chain.samples[-1]]
        shared, added = len(first.prompt_ids), last.length - len(first.prompt_ids)
        key = (first.prompt_ids, first.image_hashes)
        row = open_rows.get(key) if share else None
        if row is not None and row.length + added <= max_tokens:
            row.chains.append(chain)
            row.length += added
        else:
            row = Row([chain], shared + added)
            done.append(row)
            if share:
                open_rows[key] = row
    return done
