"""UI-TARS responses that one core parses in a second, compared with the published package `ui-tars`.

Both read the same responses to the end: ours to typed actions in pixels, theirs to the pyautogui source that an agent
would run. Rounds of the two alternate, and the best of each counts, so that a busy machine disturbs both alike. Time is
the process's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from dart_agent.formats import formats, get_format, variants
from dart_agent.formats.grammar.element_actions import ClickOn
from dart_agent.models.coordinates import CoordinateSpace
from dart_gym.core.actions import Click
from dart_gym.core.errors import MissingDependencyError
from dart_lab.agent.responses import SCREEN, responses
from dart_lab.reporting.report import Aim, Report


def measure(count: int = 2000, rounds: int = 5, published: bool = True) -> Report:
    """Measure.

    Args:
        count: responses in a round.
        rounds: of each parser.
        published: beside the package `ui-tars`.

    Raises:
        MissingDependencyError: `ui-tars` is asked for and not installed.
    """
    texts = responses(count)
    ours, screen = get_format("ui_tars"), CoordinateSpace.for_image(SCREEN)
    readers: dict[str, Callable[[str], object]] = {"parses_per_s": lambda text: ours.parse(text, screen)}
    if published:
        readers["ui_tars_parses_per_s"] = published_parser()
    rates = {name: 0.0 for name in readers}
    for _ in range(rounds):
        for name, read in readers.items():
            rates[name] = max(rates[name], _rate(read, texts))
    keys = dict(rates)
    if published:
        keys["vs_ui_tars"] = rates["parses_per_s"] / rates["ui_tars_parses_per_s"]
    others = {f"{name}_parses_per_s": rate for name, rate in _others(rounds).items()}
    notes = [f"{count} responses, best of {rounds} rounds in turn, process time; the other formats read one click"]
    aims = {name: Aim(20_000, at_most=False) for name in ("parses_per_s", *others)}
    if published:
        aims["vs_ui_tars"] = Aim(3.0, at_most=False)
    return Report("parse", {**keys, **others}, aims, notes)


def published_parser() -> Callable[[str], object]:
    """The two functions of `ui-tars` that make an agent's code of a response; what they raise on counts as read.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        from ui_tars.action_parser import parse_action_to_structure_output, parsing_response_to_pyautogui_code
    except ImportError as error:
        raise MissingDependencyError(
            "the package ui-tars is not installed: pip install ui-tars==0.5.1, or leave it out with --alone"
        ) from error
    width, height = SCREEN

    def read(text: str) -> object:
        try:
            found = parse_action_to_structure_output(text, 1000, height, width)
            return parsing_response_to_pyautogui_code(found, height, width, input_swap=False, scale_factor=1)
        except (ValueError, AssertionError) as error:
            return error

    return read


def _rate(read: Callable[[str], object], texts: Sequence[str]) -> float:
    started = time.process_time()
    for text in texts:
        read(text)
    return len(texts) / (time.process_time() - started)


def _others(rounds: int) -> dict[str, float]:
    """Responses a second of every other format and variant: a thought and a click, `ui_tars_2` for `ui_tars:2`."""
    found: dict[str, float] = {}
    for base in formats():
        for name in (base, *(f"{base}:{variant}" for variant in variants(base))):
            if name in ("ui_tars", "ui_tars:1.5"):
                continue  # measured above
            chosen = get_format(name)
            click = ClickOn("the File menu") if base == "agent_s" else Click(412, 88)
            text = chosen.format(click, SCREEN, "I open the File menu.")
            key = name.replace(":", "_").replace("-", "_").replace(".", "_")
            found[key] = max(_rate(lambda text: chosen.parse(text, SCREEN), [text] * 500) for _ in range(rounds))  # noqa: B023
    return found
