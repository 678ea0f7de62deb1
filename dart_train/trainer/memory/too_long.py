"""Steps that are too long for the device: dropped by name on all ranks, so that one of them does not end a run.

Invariant: all ranks decide alike. A step stays on every rank, if only as a copy with weight 0, or the run ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from dart_train.core.train_errors import DartTrainError, OutOfMemory, TrainingError
from dart_train.trainer.batches.optimizer_batch import OptimizerBatch, filling
from dart_train.trainer.memory.remembered_limits import RememberedLimits
from dart_train.trainer.weights.ranks import Ranks

_log = logging.getLogger(__name__)
SHORTER = 0.9
"""Share of the longest step that did not fit into memory alone: longer ones are dropped, and the step is retried."""
Explain = Callable[[], str]
"""Returns the sentence that says what takes the memory."""


def longest_step(batch: OptimizerBatch) -> int:
    """Return the tokens of this rank's longest step."""
    return max(sample.length for part in batch.parts for sample in part.samples)


def leave_out_longest(
    batch: OptimizerBatch, longest: int, before: int, ranks: Ranks, *, why: str, explain: Explain
) -> int:
    """Drop the longest steps, which no cutting makes smaller. Called by all ranks.

    Args:
        batch: of the lease that is trained on.
        longest: tokens of the longest step on all ranks.
        before: tokens of a micro-batch until now.
        ranks: all of them.
        why: the beginning of the message.
        explain: the end of the message.

    Returns:
        Tokens of a micro-batch from now on: the longest step that may be left has room.

    Raises:
        TrainingError: if no step is shorter.
    """
    bound = int(SHORTER * longest)
    if not leave_out_longer(batch, bound, ranks, why=why, explain=explain):
        raise TrainingError(
            f"{why} with micro-batches of {before} tokens, and steps are up to {longest} long; "
            f"{explain()}, or take a larger device"
        )
    return bound


def leave_out_longer(batch: OptimizerBatch, bound: int, ranks: Ranks, *, why: str, explain: Explain) -> bool:
    """Drop the steps that are longer than `bound`. Called by all ranks.

    Returns:
        Whether a step is left on any rank; otherwise all stay.
    """
    own = [sample for part in batch.parts for sample in part.samples]
    shortest = min(ranks.gather(min(own, key=lambda sample: sample.length)), key=lambda one: one.length)
    if shortest.length > bound:
        return False
    dropped = sum(part.leave_out_longer(bound, filling([shortest])) for part in batch.parts)
    total = sum(ranks.gather(dropped))
    batch.metrics["dropped/too_long"] = batch.metrics.get("dropped/too_long", 0.0) + total
    _log.warning(
        "%s: %d steps of more than %d tokens do not fit and are dropped as too_long. %s", why, total, bound, explain()
    )
    return True


def leave_out_known(batch: OptimizerBatch, limits: RememberedLimits | None, ranks: Ranks, explain: Explain) -> bool:
    """Drop the steps that did not fit in a life before. Called by all ranks; returns whether some were dropped."""
    bound = limits.longest if limits is not None else None
    if bound is None or max(ranks.gather(longest_step(batch))) <= bound:
        return False
    return leave_out_longer(batch, bound, ranks, why="out of memory in a life before", explain=explain)


def for_the_next_life(
    longest: int, max_tokens: int, limits: RememberedLimits | None, explain: Explain
) -> DartTrainError:
    """Write smaller limits down, where there is a place for them; return the error that ends this life.

    Args:
        longest: tokens of this rank's longest step. The other ranks wait in their pass and cannot be asked.
        max_tokens: tokens of a micro-batch until now.
        limits: of this trainer's directory; None if it has none.
        explain: a part of the message.
    """
    what = f"out of memory with micro-batches of {max_tokens} tokens; {explain()}"
    if limits is None:
        return TrainingError(what)
    half = max_tokens // 2
    bound: int | None = None
    if half < longest:
        bound = half = int(SHORTER * longest)
    limits.lower(half, bound)
    rest = "" if bound is None else f", and without steps of more than {bound} tokens, as too_long"
    return OutOfMemory(
        f"{what}. With fsdp a step cannot be made again in the middle of a pass: the trainer starts again with "
        f"micro-batches of {half} tokens{rest} ({limits.path})"
    )
