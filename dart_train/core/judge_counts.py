"""What a run's judges did, by the counts of the rollout service, in sentences. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

SUSPICIOUS = 32
"""Failures that a judge called a success after which one that calls everything a success is warned of."""
ENOUGH = 30
"""Episodes from which the share of missing judgements is taken seriously."""
MOST_MISSING = 0.1
"""Share of episodes without a judgement above which the judge is warned of."""


def judge_counts(lives: Iterable[Mapping[str, Any]]) -> dict[str, Counter[str]]:
    """Return the counts of each judge by name, from the last metrics line of each life of the rollout service."""
    found: dict[str, Counter[str]] = {}
    for row in lives:
        for name, counts in (row.get("judges") or {}).items():
            found.setdefault(name, Counter()).update(counts)
    return found


def judge_said(counts: Mapping[str, int]) -> str:
    """Return what became of the episodes that a judge was asked about."""
    judged, nonsense, silent = (counts.get(name, 0) for name in ("judged", "nonsense", "silent"))
    missing = [f"{nonsense} answers were no judgement"] if nonsense else []
    missing += [f"{silent} episodes got no answer"] if silent else []
    return "; ".join([f"{judged} episodes judged, {counts.get('yes', 0)} of them as a success", *missing])


def judge_faults(counts: Mapping[str, int]) -> dict[str, str]:
    """Return why nothing can be learned from a judge, as far as the run has shown: clauses by kind."""
    judged, missing = counts.get("judged", 0), counts.get("nonsense", 0) + counts.get("silent", 0)
    found = {}
    if judged + missing >= ENOUGH and missing > MOST_MISSING * (judged + missing):
        found["missing"] = f"it gives no judgement of {missing / (judged + missing):.0%} of the episodes"
    if judged and counts.get("yes", 0) == judged and counts.get("wrong", 0) >= SUSPICIOUS:
        found["always_yes"] = (
            f"it has called all {judged} episodes a success, {counts['wrong']} of which the evaluators call a failure: "
            "it tells nothing"
        )
    return found
