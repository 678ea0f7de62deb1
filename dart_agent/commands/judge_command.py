"""`dart-agent judge`: how far a judge agrees with the evaluators of recorded episodes."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console

from dart_agent.episodes.episode_files import RecordError, find_episodes
from dart_agent.exports.episode_selection import select_episodes
from dart_agent.judging.judge import make_judge
from dart_agent.judging.measuring import Judged, calibration, compared, judge_recorded
from dart_gym.commands.json_output import JsonOption, write_json
from dart_gym.commands.section_options import key_values

console = Console()


def judge_command(
    directories: Annotated[list[Path], typer.Argument(help="Of runs, evaluations (eval --out) or episodes.")],
    kind: Annotated[
        str, typer.Option("--judge", help='"model", "program", "checkpoints", a package\'s, or module:Class.')
    ],
    option: Annotated[list[str] | None, typer.Option(help="Option of the judge, key=value; may be repeated.")] = None,
    source: Annotated[list[str] | None, typer.Option(help="Only episodes of this source; may be repeated.")] = None,
    task: Annotated[
        list[str] | None, typer.Option(help='Only of these tasks, a name or a pattern "miniwob/*"; may be repeated.')
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Most episodes, evenly spread over all.")] = None,
    json_file: JsonOption = None,
) -> None:
    """Have a judge look at scored episodes, and say how far it agrees with their evaluators.

    The file of --json is what `rewards.NAME.calibration` of a run asks for.
    """
    options = read_options(option or [])
    judge = make_judge(kind, options)
    found = [path for directory in directories for path in find_episodes(directory)]
    episodes, left_out = select_episodes(found, min_score=0.0, sources=source or (), tasks=task or ())
    if limit is not None and len(episodes) > limit:
        episodes = [episodes[place * len(episodes) // limit] for place in range(limit)]
    if not episodes:
        why = "".join(f"; {count} episodes {reason} left out" for reason, count in sorted(left_out.items()))
        raise RecordError(f"no scored episode at {', '.join(map(str, directories))}{why}")
    judged = asyncio.run(judge_recorded(judge, episodes))
    write_json(json_file, calibration(kind, options, judged))
    for line in lines_of(kind, judged):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def read_options(items: list[str]) -> dict[str, Any]:
    """Parse `key=value` options; values are YAML. Raises `ConfigurationError`."""
    return {key: _yaml(text) for key, text in key_values(items, "--option").items()}


def _yaml(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def lines_of(kind: str, judged: list[Judged]) -> list[str]:
    """Return what people are told of a judge."""
    found = compared(judged)
    kappa = "unknown" if found.kappa is None else f"{found.kappa:.2f}"
    lines = [
        f"judge {kind}: {found.episodes} episodes, of which evaluators call {found.successes.shown()} a success",
        f"  agrees with the evaluators: {found.accuracy.shown()}",
        f"  Cohen's kappa:              {kappa} (95 %: {found.kappa_low:.2f} to {found.kappa_high:.2f})",
        f"  false successes:            {found.false_successes.shown()} of what it calls a success",
        f"  missed successes:           {found.missed.shown()}",
        f"  calls a success:            {found.judged_successes.shown()}",
        f"  no judgement:               {found.unreadable.shown()}",
    ]
    errors = [one.error for one in judged if one.error]
    if errors:
        lines.append(f"  it failed {len(errors)} times, such as: {errors[0]}")
    odd = next((one.said for one in judged if one.value is None and not one.error and one.said), "")
    if odd:
        lines.append(f"  an answer that is no judgement: {' '.join(odd.split())[:160]!r}")
    return [*lines, *(f"do not train with it as it is: {fault}" for fault in found.faults)]
