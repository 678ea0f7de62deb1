"""OSWorld's metrics, as far as they are needed here: pure functions of a result and what was expected.

Semantics and names are those of desktop-env 1.0.2 (`evaluators/metrics/general.py`, `vscode.py`): the same scores, and
an exception where those raise. A test compares the two.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

Metric = Callable[..., float]


def exact_match(result: Any, rules: dict[str, Any]) -> float:
    """1 when the result equals `rules["expected"]`."""
    return 1.0 if result == rules["expected"] else 0.0


def match_in_list(result: Any, rules: dict[str, Any]) -> float:
    """1 when the result is one of `rules["expected"]`."""
    return 1.0 if result in rules["expected"] else 0.0


def is_in_list(result: Any, rules: dict[str, Any]) -> float:
    """1 when `rules["expected"]` is in the result (an item of a list, or a part of a text; None is an error)."""
    return 1.0 if rules["expected"] in result else 0.0


def check_include_exclude(result: str | None, rules: dict[str, list[str]]) -> float:
    """1 when the result holds all texts of `rules["include"]` and none of `rules["exclude"]`."""
    if result is None:
        return 0.0
    included = all(text in result for text in rules.get("include", []))
    return 1.0 if included and not any(text in result for text in rules.get("exclude", [])) else 0.0


def compare_text_file(actual: Path | str | None, expected: Path | str | None, **options: Any) -> float:
    """1 when two files hold the same text; options: `ignore_blanks` (runs of them are one space), `ignore_case`."""
    if not actual:
        return 0.0
    if expected is None:
        raise ValueError("there is no expected file to compare with")
    texts = [Path(path).read_text(encoding="utf-8") for path in (actual, expected)]
    if options.get("ignore_blanks", False):
        texts = [re.sub(r"\s+", " ", re.sub(r"[\t\n]", " ", text).strip()) for text in texts]
    if options.get("ignore_case", False):
        texts = [text.lower() for text in texts]
    return 1.0 if texts[0] == texts[1] else 0.0


METRICS: dict[str, Metric] = {
    metric.__name__: metric
    for metric in (exact_match, match_in_list, is_in_list, check_include_exclude, compare_text_file)
}
