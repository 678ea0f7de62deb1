"""Why a trainer gets nothing, in words: how many trajectories fail which rule, with the values that were seen. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dart_train.data.curation.drop_rules import SENTENCES
from dart_train.data.curation.rules import Census


@dataclass(frozen=True, slots=True)
class Evidence:
    """Facts on which a rule dropped or held back data.

    Attributes:
        serving: versions that the engines serve; where none said so, the published ones that may be trained on.
        stale: trajectories by the oldest version of their group, of those that are too old.
    """

    serving: tuple[int, ...] = ()
    stale: Mapping[int, int] = field(default_factory=dict)
    making: Mapping[tuple[int, int], int] = field(default_factory=dict)
    no_signal: Mapping[float, int] = field(default_factory=dict)
    terminals: Mapping[str, int] = field(default_factory=dict)
    asked: int | None = None
    holders: Mapping[str, int] = field(default_factory=dict)


def explain(census: Census, evidence: Evidence | None = None, sentences: Mapping[str, str] = SENTENCES) -> str:
    """Say why not more can be leased: "0 of 812 trajectories eligible: 640 older than version 7 (...), ..."."""
    if census.total == 0:
        return "no trajectories recorded yet: is the rollout service running, and with this run_id and database?"
    seen = evidence or Evidence()
    details = {
        "stale": _versions(seen),
        "no_signal": _rewards(seen),
        "unfinished": _making(seen),
        "leased": _counted(seen.holders),
        "untrainable": _counted(seen.terminals),
    }
    known = {**sentences, "stale": f"older than version {census.oldest_allowed}"}
    counts = census.parts()
    names = [*known, *(name for name in census.dropped if name not in known)]
    phrases = [
        f"{counts[name]} {known.get(name, f'dropped by the rule {name}')}{details.get(name, '')}"
        for name in names
        if counts.get(name)
    ]
    groups = f" in {census.eligible_groups} groups" if census.eligible else ""
    asked = f", {seen.asked} groups asked for" if seen.asked is not None else ""
    text = f"{census.eligible} of {census.total} trajectories eligible{groups}{asked}"
    return f"{text}: {', '.join(phrases)}" if phrases else text


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
