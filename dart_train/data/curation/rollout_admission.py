"""When another group of rollouts may start, so that nothing is made that will be too old to train on: pure decisions.

AReaL (arXiv 2505.24298, `staleness_manager.py`) admits `(max_staleness + version + 1) * batch - (accepted + running)`
rollouts, where `accepted` counts from the start of the run what came back and was not filtered out; on resume it sets
`accepted = version * batch`, or a restart would admit too many or none.

Here `accepted` is counted in rows: trained + leased + ready. Groups that were filtered, expired or rejected are in no
such state, so they stop counting by themselves, and a resumed run finds its rows as it left them. Where each version
consumed one whole batch, trained = version * batch, and both sides of the formula lose it: what remains is `capacity`
below. Where batches were smaller, or versions were published otherwise, it goes by what was consumed, so that the bound
keeps its meaning: before what starts now is trained, at most `max_staleness` other batches are.

Everything is counted in groups, because a trainer leases groups of any size: with the rollouts of
full groups instead, groups of 2 would be admitted four times as often as a trainer of groups of 8 can take them. And a
group that is open counts as much as it will probably bring: where 40 % of the groups have any signal, five open ones
are two batches' worth of groups that a trainer will see.
"""

import math
from dataclasses import dataclass

from dart_train.data.curation.rules import CurationConfig

PRIOR = 4.0
"""Groups that are taken for usable before any was seen: at first nothing is known, and too little is admitted rather
than too much."""
DEVIATIONS = 1.0
"""So many standard deviations more of the open groups than their mean are counted as usable, for the staleness window:
what is usable beyond it expires."""
LATEST_GROUPS = 64
"""Number of the latest groups from which the usable share of the open ones is estimated."""


def usable_share(usable: int, decided: int) -> float:
    """Return the share, in (0, 1], of the lately decided groups that can be trained on; unseen ones do not count."""
    return (usable + PRIOR) / (decided + PRIOR)


@dataclass(frozen=True, slots=True)
class Backlog:
    """Groups that lie between rollouts and trainer.

    Attributes:
        running: groups that were begun and lack members.
        usable: share of these that will become ready, as `usable_share` estimates it.
        playing: rollouts of these that are not played yet, in full groups; None for all of them. A group that waits for
            its last member takes no desktops, but is one that a trainer will see.
    """

    ready: int
    leased: int
    running: int
    usable: float = 1.0
    playing: float | None = None


def capacity(
    backlog: Backlog,
    *,
    batch_groups: float,
    max_staleness: int | None,
    batches_ahead: float | None,
    lease_groups: int = 0,
) -> int | None:
    """Return how many more groups may be begun; 0 or less when there are too many already, None: any number.

    Args:
        backlog: what waits, is leased, and runs.
        batch_groups: groups that a trainer takes between two versions.
        max_staleness: versions by which a rollout may lie behind the version that it is trained into; None: no limit.
        batches_ahead: batches that may wait or run, to save desktops rather than for freshness; None: no limit.
        lease_groups: groups of one lease. Several versions may come of it, and then a batch is a part of it; what the
            next lease lacks may be begun nevertheless while none is held, or trainer and rollouts would wait for one
            another.
    """
    usable, running = backlog.usable, backlog.running
    rooms = []
    if max_staleness is not None:
        wanted = (max_staleness + 1) * batch_groups - backlog.leased - backlog.ready
        rooms.append(_begun_for(wanted, usable, DEVIATIONS) - running)
    if batches_ahead is not None:
        playing = running if backlog.playing is None else math.ceil(backlog.playing)
        rooms.append(_begun_for(batches_ahead * batch_groups - backlog.ready, usable, 0.0) - playing)
    return max(min(rooms), lease_groups - backlog.leased - backlog.ready - running) if rooms else None


def _begun_for(wanted: float, usable: float, deviations: float) -> int:
    """Groups that may be open so that about as many as wanted become usable: n with n u + z sqrt(n u (1 - u)) <= w.

    At least 1 where one is wanted, or nothing would ever be begun for it.
    """
    if wanted < 1.0:
        return math.floor(wanted / usable + 1e-9)
    spread = deviations * math.sqrt(usable * (1.0 - usable))
    root = (math.sqrt(spread * spread + 4.0 * usable * wanted) - spread) / (2.0 * usable)
    return max(1, math.floor(root * root + 1e-9))


def most_rollouts(
    group_size: int,
    *,
    batch_groups: float,
    max_staleness: int | None,
    batches_ahead: float | None,
    usable: float = 1.0,
    lease_held: bool = False,
    lease_groups: int = 0,
) -> int | None:
    """Return the largest number of rollouts that can be played at once, with any number of desktops; None: no limit.

    See `capacity`; `lease_held`: whether the trainer has a lease meanwhile, as it has where rollouts wait for it.
    """
    held = math.ceil(batch_groups) if lease_held else 0
    room = capacity(
        Backlog(ready=0, leased=held, running=0, usable=usable),
        batch_groups=batch_groups,
        max_staleness=max_staleness,
        batches_ahead=batches_ahead,
        lease_groups=lease_groups,
    )
    return None if room is None else max(room, 0) * group_size


def idle_workers(workers: int, group_size: int, sizes: CurationConfig) -> str:
    """Say how many workers can play at a time, where that is not all of them; else the empty string."""
    most, fewest = (
        most_rollouts(
            group_size,
            batch_groups=sizes.batch_groups * sizes.leases_per_version,
            max_staleness=sizes.max_staleness,
            batches_ahead=sizes.batches_ahead,
            usable=usable,
            lease_groups=sizes.batch_groups,
        )
        for usable in (1.0, 0.4)
    )
    if most is None or workers <= most:
        return ""
    return (
        f"of {workers} workers at most {most} play at a time where every group can be trained on, and {fewest} where "
        "40 % can: more would be too old for the trainer. Raise trainer.groups_per_step, data.curation.max_staleness "
        "or batches_ahead, or play larger groups"
    )
