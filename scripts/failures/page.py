"""The page docs/reference/failures.md: one table for each command."""

from __future__ import annotations

from collections.abc import Mapping

from scripts.failures.cells import Cell, End, cells_of
from scripts.failures.rows import ROWS, Row
from scripts.failures.situations import MEANING, Situation

LONGEST = 200
INTRODUCTION = """# When something is wrong

How every command ends in each situation: its exit status and the last line that it prints. Look here when you write a
script around a command, or do not understand a message. `python -m scripts.failures` runs them all and writes this
page; a test runs a part of it again, and fails where a command is missing.

Exit status: 0 the work is done, 1 it is not, 2 the command line is wrong, 130 Ctrl-C; 3 `data check` found damage; 78
in a supervised process that would fail again.

- No command prints a traceback; `--debug` shows it.
- Commands that only read create nothing.
- A wait of more than 10 seconds, and each kind of retry, is a line on stderr. `--timeout` limits one wait, `--max-lost`
  the episodes that may be lost.
- A missing optional package is one line that names the extra to install.
- `--version` is there everywhere, and `--json FILE` wherever a table is printed.

The commands `bench` are part of a checkout, not of the installed programs, and are not listed.
"""


def page(ends: Mapping[str, End]) -> str:
    """Return the page; `ends` by the names of cells."""
    lines = [INTRODUCTION, "| situation | meaning |", "|---|---|"]
    lines += [f"| {situation.value} | {MEANING[situation]} |" for situation in Situation]
    for row in ROWS:
        cells = list(cells_of(row))
        if cells:
            lines += ["", f"## {row.name}", "", *_table(row, cells, ends)]
    return "\n".join(lines) + "\n"


def _table(row: Row, cells: list[Cell], ends: Mapping[str, End]) -> list[str]:
    lines = [f"`{f'{row.name} {row.line}'.strip()}`", "", "| situation | status | last line |", "|---|---|---|"]
    for cell in cells:
        where = cell.situation.value + (f", {cell.link.name}" if cell.link else "")
        end = ends.get(str(cell))
        lines.append(f"| {where} | {end.status} | {_shown(end.last)} |" if end else f"| {where} | - | not run yet |")
    reasons: dict[str, list[str]] = {}
    for situation in Situation:
        if reason := row.reason(situation):
            reasons.setdefault(reason, []).append(situation.value)
    if reasons:
        lines += ["", "Not tried: " + "; ".join(f"{', '.join(names)} ({why})" for why, names in reasons.items()) + "."]
    return lines


def _shown(line: str) -> str:
    short = line if len(line) <= LONGEST else line[:LONGEST].rstrip() + " ..."
    return f"`{short.replace('`', chr(39)).replace('|', chr(92) + '|')}`" if short else "(none)"
