"""Why a trainer gets nothing, in words: how many trajectories fail which rule, with the values that were seen. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dart_train.data.curation.rules import Census


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was seen where a rule said no.

    Attributes:
        serving: versions that the engines serve; where none said so, the published ones that may be trained on.
        stale: trajectories by the oldest version of their group, of those that are too old.
        making: unfinished groups by (members, expected).
        no_signal: groups without variance by their common reward.
        terminals: trajectories by terminal state, of those that must not be trained on.
        asked: groups that the lease asks for; None if nobody asks.
        holders: trajectories on lease by holder.
    """

    serving: tuple[int, ...] = ()
    stale: Mapping[int, int] = field(default_factory=dict)
    making: Mapping[tuple[int, int], int] = field(default_factory=dict)
    no_signal: Mapping[float, int] = field(default_factory=dict)
    terminals: Mapping[str, int] = field(default_factory=dict)
    asked: int | None = None
    holders: Mapping[str, int] = field(default_factory=dict)


def explain(census: Census, evidence: Evidence | None = None) -> str:
    """Say why not more can be leased: "0 of 812 trajectories eligible: 640 older than version 7 (...), ..."."""
    if census.total == 0:
        return "no trajectories recorded yet: is the rollout service running, and with this run_id and database?"
    seen = evidence or Evidence()
    phrases: Mapping[str, int] = {
        f"older than version {census.oldest_allowed}{_versions(seen)}": census.stale,
        f"in groups with no variance{_rewards(seen)}": census.no_signal,
        "in groups that mostly succeed": census.too_easy,
        f"in unfinished groups{_making(seen)}": census.unfinished,
        f"leased now{_counted(seen.holders)}": census.leased,
        "trained already": census.trained,
        "in the pool or demonstrations": census.pooled,
        f"ended in an environment, engine or evaluation error{_counted(seen.terminals)}": census.untrainable,
        "beyond their group's size": census.surplus,
        "left out to balance their group": census.unselected,
        "replaced by a success of the pool": census.replaced,
        "in groups with damaged files": census.corrupt,
    }
    groups = f" in {census.eligible_groups} groups" if census.eligible else ""
    reasons = ", ".join(f"{count} {phrase}" for phrase, count in phrases.items() if count)
    asked = f", {seen.asked} groups asked for" if seen.asked is not None else ""
    text = f"{census.eligible} of {census.total} trajectories eligible{groups}{asked}"
    return f"{text}: {reasons}" if reasons else text


def as_set(values: Iterable[int], most: int = 6) -> str:
    """Write whole numbers as a set, long ones by their ends: {3,4}, {1,2,3,...,40}."""
    ordered = sorted(set(values))
    if len(ordered) > most:
        return f"{{{','.join(map(str, ordered[:3]))},...,{ordered[-1]}}}"
    return f"{{{','.join(map(str, ordered))}}}"


def _versions(seen: Evidence) -> str:
    if not seen.stale:
        return ""
    return f" (serving versions {as_set(seen.serving)}; rows carry {as_set(seen.stale)})"


def _rewards(seen: Evidence) -> str:
    parts = [f"{count} groups all {reward:g}" for reward, count in sorted(seen.no_signal.items())]
    return f" ({', '.join(parts[:4])}{', ...' if len(parts) > 4 else ''})" if parts else ""


def _making(seen: Evidence) -> str:
    fullest = sorted(seen.making.items(), key=lambda item: item[0][0] / item[0][1], reverse=True)[:3]
    parts = [f"{count} with {have} of {want}" for (have, want), count in fullest]
    return f" ({', '.join(parts)}{', ...' if len(seen.making) > 3 else ''})" if parts else ""


def _counted(names: Mapping[str, int]) -> str:
    parts = [f"{name} {count}" for name, count in sorted(names.items(), key=lambda item: -item[1])[:4]]
    return f" ({', '.join(parts)})" if parts else ""
