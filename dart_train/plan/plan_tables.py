"""A plan as a person reads it, and as a file."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dart_train.plan.run_plan import Machine, RunPlan
from dart_train.plan.step_passes import Assumed
from dart_train.trainer.memory.step_memory import GIB

SMALL_LEASE = 10**15
"""Operations of a lease below which they are written in units of 10^9 instead of 10^12."""


def shown(plan: RunPlan, machine: Machine, assumed: Assumed) -> RenderableType:
    """Tables of memory, engines, host, disk and time, and sentences of what follows."""
    room = "" if plan.room is None else f" of {plan.room / GIB:.1f}"
    engines = f", the engines read its prompts in {plan.engines_s:.0f} s" if plan.engines_s else ""
    parts: list[RenderableType] = [
        _table(f"GiB of each of {plan.ranks} training ranks", plan.rank.causes, GIB),
        Text(f"peak {plan.rank.peak / GIB:.1f}{room} GiB{_longest(plan)}\n"),
        Text(_engine(plan)),
        _table("GiB of the host's memory, desktops left out", plan.host, GIB),
        _table("GB of disk: screenshots of an hour, and what is kept at most", plan.disk, 10**9),
    ]
    parts.append(_passes(plan, machine))
    parts += [
        Text(f"The desktops play a lease in {plan.rollout_s:.0f} s{engines}: {plan.waits}."),
        Text(
            f"Assumed: {assumed.steps} steps an episode of {assumed.step_s:g} s each, {assumed.response} tokens a "
            f"response, {assumed.image_tokens} a screenshot of {assumed.screenshot_bytes / 1e6:.1f} MB."
        ),
    ]
    parts += [Text(f"Does not fit: {reason}.", "red") for reason in plan.refusals]
    parts += [Text(f"Change: {change}.", "yellow") for change in plan.changes]
    return Group(*parts)


def as_values(plan: RunPlan) -> dict[str, Any]:
    """The plan as JSON: bytes, seconds, sentences."""
    return {
        "ranks": plan.ranks,
        "rank_bytes": dict(plan.rank.causes),
        "rank_peak_bytes": plan.rank.peak,
        "room_bytes": plan.room,
        "ranks_sharing_rows": plan.sharing,
        "longest_row_tokens": plan.longest_row,
        "engine": {
            "weights_bytes": plan.engine.weights,
            "cache_bytes": plan.engine.cache,
            "token_bytes": plan.engine.token,
            "memory_bytes": plan.engine.memory,
            "request_tokens": plan.engine.request,
            "requests": plan.engine.requests,
        },
        "host_bytes": dict(plan.host),
        "disk_bytes_per_hour": dict(plan.disk),
        "passes": [
            {"name": one.name, "operations": one.flops, "seconds": plan.seconds.get(one.name)} for one in plan.passes
        ],
        "seconds": dict(plan.seconds),
        "rollout_s": plan.rollout_s,
        "engines_s": plan.engines_s,
        "waits": plan.waits,
        "refusals": list(plan.refusals),
        "changes": list(plan.changes),
    }


def _longest(plan: RunPlan) -> str:
    """Return how long a row may be, and who shares it."""
    if plan.longest_row is None:
        return ""
    shared = f", shared by {plan.sharing} ranks" if plan.sharing > 1 else ""
    return f"; the longest row that fits is {plan.longest_row:,} tokens{shared}"


def _engine(plan: RunPlan) -> str:
    engine = plan.engine
    text = f"A replica holds {engine.weights / GIB:.1f} GiB of weights; the longest request is {engine.request} tokens"
    text += f" and takes {(engine.request * engine.token + engine.memory) / GIB:.2f} GiB of cache"
    if engine.requests is None:
        return f"{text}.\n"
    return f"{text}; {(engine.cache or 0) / GIB:.1f} GiB are left for them: {engine.requests} requests at once.\n"


def _passes(plan: RunPlan, machine: Machine) -> RenderableType:
    """Each pass over a lease with its operations, and its seconds where they are known."""
    known = bool(plan.seconds)
    total = sum(one.flops for one in plan.passes)
    power = 12 if total >= SMALL_LEASE else 9
    table = Table(show_header=False, box=None)
    for one in sorted(plan.passes, key=lambda one: -one.flops):
        seconds = [f"{plan.seconds[one.name]:,.2f}"] if known else []
        table.add_row(one.name, f"{one.flops / 10**power:,.0f}", *seconds)
    table.add_row("in all", f"{total / 10**power:,.0f}", *([f"{sum(plan.seconds.values()):,.2f}"] if known else []))
    title = f"passes over a lease: 10^{power} operations"
    return Group(Text(f"{title}, seconds at {machine.mfu:.0%} of the peak" if known else title, "bold"), table)


def _table(title: str, values: Mapping[str, float], unit: float) -> RenderableType:
    table = Table(show_header=False, box=None)
    for name, value in sorted(values.items(), key=lambda item: -item[1]):
        table.add_row(name, f"{value / unit:,.2f}")
    table.add_row("in all", f"{sum(values.values()) / unit:,.2f}")
    return Group(Text(title, "bold"), table)
