"""Conditions of a score apart from the policy: protocols, and differences between evaluations or from published ones.

Invariants:
    - Scores of other pacing, step limits, screens or evaluators are of another environment: they are not compared.
    - Every difference that changes the policy (model, preset, prompt, sampling, software) is named.
"""

import html
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dart_agent.episodes.episode_files import find_episodes, read_episode
from dart_agent.evaluation.evaluation_directory import has_no_plan, read_manifest
from dart_agent.evaluation.scores import score_task, total_score
from dart_agent.policies.policy import PlayableSession
from dart_agent.presets import get_preset
from dart_gym.core.errors import ConfigurationError
from dart_gym.core.outcomes import StepResult
from dart_gym.core.suggestions import suggest


@dataclass(frozen=True, slots=True)
class Protocol:
    """The protocol by which a benchmark's runner plays.

    Attributes:
        pacing: how long it waits, a name of `dart_gym.sessions.reset_request`.
        max_steps: its step limit.
        screen: (width, height) in pixels.
        source: where that was read.
    """

    pacing: str
    max_steps: int
    screen: tuple[int, int]
    source: str


PROTOCOLS = {
    "osworld-verified": Protocol(
        "osworld", 50, (1920, 1080), "OSWorld lib_run_single.py, run_multienv_*.py; meituan/EvoCUA@4a0ad5f README.md"
    )
}
_ENVIRONMENT = ("pacing", "max_steps", "screen", "evaluator")


def protocol_named(name: str, pacing: str | None, max_steps: int | None) -> Protocol:
    """Return the protocol of a name.

    Raises:
        ConfigurationError: if there is no such protocol, or a setting is given that the protocol fixes.
    """
    if name not in PROTOCOLS:
        raise ConfigurationError(f"unknown protocol {name!r}; {suggest(name, PROTOCOLS)}")
    given = [flag for flag, value in (("--pacing", pacing), ("--max-steps", max_steps)) if value is not None]
    if given:
        raise ConfigurationError(f"--protocol {name} sets {' and '.join(given)}: leave one of them out")
    return PROTOCOLS[name]


class SizedSessions:
    """Sessions on desktops with a screen of a given size."""

    def __init__(self, sessions: Any, screen: tuple[int, int]) -> None:
        self._sessions, self._screen = sessions, screen

    def session(self) -> AbstractAsyncContextManager[PlayableSession]:
        """A session that asks for this screen at every reset."""
        return _SizedSession(self._sessions.session(), self._screen)


class _SizedSession:
    def __init__(self, inner: Any, screen: tuple[int, int]) -> None:
        self._inner, self._desktop = inner, dict(zip(("width", "height"), screen, strict=True))

    async def __aenter__(self) -> Any:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> Any:
        return await self._inner.__aexit__(*exc)

    async def reset(self, task: str, **fields: Any) -> StepResult:
        return await self._inner.reset(task, desktop=self._desktop, **fields)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def software(engine_url: str | None) -> dict[str, str]:
    """Versions of what plays here; of an engine elsewhere only how it is reached."""
    engine = {"engine": "elsewhere, " + engine_url.partition(":")[0]} if engine_url else {"transformers": ""}
    found = {"dart-gui": "", **engine}
    return {name: known or _version(name) for name, known in found.items()}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def conditions(root: str | Path) -> dict[str, Any]:
    """All that decided the scores of an evaluation, by name; screens, evaluators and hashes by task.

    Of episodes of others only that is known which each of them says.

    Raises:
        RecordError: it is no evaluation and holds no episodes, or one is damaged.
    """
    manifest: dict[str, Any] = (
        {"settings": {}, "policy": None, "max_steps": None} if has_no_plan(root) else read_manifest(root)
    )
    found: dict[str, Any] = {**manifest["settings"], "policy": manifest["policy"], "max_steps": manifest["max_steps"]}
    by_task: dict[str, dict[str, str]] = {"screen": {}, "evaluator": {}, "task_hash": {}}
    for path in find_episodes(root):
        episode = read_episode(path)
        found["policy"] = found["policy"] or episode.policy
        if episode.steps:
            by_task["screen"][episode.task_id] = "{}x{}".format(*episode.steps[0].screen)
        by_task["evaluator"][episode.task_id] = episode.evaluator
        by_task["task_hash"][episode.task_id] = episode.task_hash
    return found | by_task


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """(what of two evaluations' environments differs, what else differs), one line each; of common tasks. Pure."""
    of_environment: list[str] = []
    of_policy: list[str] = []
    for name in sorted({*a, *b} - {"task_hash"}):
        one, other = a.get(name), b.get(name)
        if name in ("screen", "evaluator"):
            one, other = one or {}, other or {}
            common = one.keys() & other.keys()
            task = min((task for task in common if one[task] != other[task]), default=None)
            one, other = (None, None) if task is None else (f"{task}: {one[task]}", f"{task}: {other[task]}")
        if one != other:
            (of_environment if name in _ENVIRONMENT else of_policy).append(f"{name}: {_shown(one)}, {_shown(other)}")
    return of_environment, of_policy


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)[:80]


def check_comparable(a: str | Path, b: str | Path, *, anyway: bool = False) -> list[str]:
    """Return the differences between two evaluations, apart from their scores.

    Raises:
        ConfigurationError: they were played in different environments, and not `anyway`.
    """
    of_environment, of_policy = differences(conditions(a), conditions(b))
    if of_environment and not anyway:
        raise ConfigurationError(
            f"{a} and {b} were not played alike, so their scores are not of one thing: {'; '.join(of_environment)}. "
            "Evaluate one of them again, or say --anyway"
        )
    unknown = [f"how the episodes of {root} were played was not recorded" for root in (a, b) if has_no_plan(root)]
    return [*of_environment, *of_policy, *unknown]


def published_page(root: str | Path) -> str:
    """One HTML page: our score next to the published ones of its preset, and the differences.

    Raises:
        ConfigurationError: it was played without a preset, or nothing is published for that.
        RecordError: it is no evaluation.
    """
    root = Path(root)
    found = conditions(root)
    if not found.get("preset"):
        raise ConfigurationError(
            f"{root} was played without a preset, so that no published number belongs to it: dart-agent eval --preset"
        )
    preset = get_preset(found["preset"])
    if not preset.published:
        raise ConfigurationError(f"the preset {preset.name} knows no published number: add it to its file")
    ours = total_score([score_task("all", [read_episode(path) for path in find_episodes(root)])])
    screens = sorted(set(found["screen"].values()))
    differs = [
        *(() if found.get("preset_hash") == preset.digest else ("the preset has changed since it was played",)),
        f"tasks: {len(found['task_hash'])} here; the published benchmark has 369, or 361 without Google Drive",
        f"step limit: {found['max_steps'] or 'the tasks own'} here",
        f"pacing: {found.get('pacing') or 'settle'} here; OSWorld waits 60 s after a reset, and after every step",
        f"screen: {', '.join(screens) or 'unknown'} here; 1920x1080 there",
        "evaluators: dart-gym's here, OSWorld's there",
        *(() if preset.top_p == 1 else (f"top_p: {preset.top_p:g} there; here sampling is never cut",)),
        *(
            f"{name}: {found[name]} here, {value} in the preset"
            for name, value in preset.settings().items()
            if name in found and found[name] != value
        ),
        *preset.deviations,
        *((f"not verified: {preset.unverified}",) if preset.unverified else ()),
    ]
    rows = [(f"here: {root.name}", f"{100 * ours.mean_score:.1f}", f"{ours.episodes} episodes, {ours.lost} lost")]
    rows += [
        (one.checkpoint, f"{one.score:g}", f"{one.benchmark}, {one.steps or 'unknown'} steps; {one.source}")
        for one in preset.published
    ]
    cells = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
    items = "".join(f"<li>{html.escape(line)}</li>\n" for line in differs)
    return _PAGE.format(name=html.escape(preset.name), rows=cells, items=items)


_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{name}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>body{{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto}}td,th{{padding:.2em 1em;text-align:left}}</style>
<h1>{name}: here and published</h1>
<table><tr><th>played by</th><th>score</th><th>how</th></tr>
{rows}</table><h2>What differs</h2><ul>
{items}</ul></html>
"""
