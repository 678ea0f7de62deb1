"""The page docs/reference/failures.md: one table for each command."""

from __future__ import annotations

import re
from collections.abc import Mapping

from scripts.failures.cells import Cell, End, cells_of
from scripts.failures.rows import ROWS, Row
from scripts.failures.situations import MEANING, Situation

LONGEST = 200
INTRODUCTION = """# When something is wrong

How every command ends when something around it is wrong: its exit status, and the last line that it prints. Look here
when you write a script around a command, or meet a message and ask where it comes from: search the page for its words.
Every line was printed by the real program.

| exit status | meaning |
|---|---|
| 0 | the work is done |
| 1 | it is not, and the last lines say why and what to do next |
| 2 | the command line is wrong |
| 3 | `dart-train data check` found damage |
| 78 | a supervised process would fail again in the same way |
| 130 | Ctrl-C |

- No command prints a traceback; `--debug` shows it.
- Commands that only read create nothing.
- A wait of more than 10 seconds, and each kind of retry, is a line on stderr. `--timeout` limits one wait, `--max-lost`
  the episodes that may be lost.
- A missing optional package is one line that names the extra to install.
- `--version` is there everywhere, and `--json FILE` wherever a table is printed.

`make failures` runs everything again and writes this page; a test runs a part of it, and fails where a command is
missing.
The commands `bench` are part of a checkout, not of the installed programs, and are not listed. In the lines DIR is the
working directory, PORT a port, KEY a secret, and N a number that differs from run to run.

## Situations
"""


def page(ends: Mapping[str, End]) -> str:
    """Return the page; `ends` by the names of cells."""
    lines = [INTRODUCTION, "| situation | what is wrong |", "|---|---|"]
    lines += [f"| {situation.value} | {MEANING[situation]} |" for situation in Situation]
    for row in ROWS:
        cells = list(cells_of(row))
        if cells:
            lines += ["", f"## {row.name}", "", *_table(row, cells, ends)]
    return "\n".join(lines) + "\n"


def _table(row: Row, cells: list[Cell], ends: Mapping[str, End]) -> list[str]:
    """Return the lines of a command's table: situations that end alike share a line."""
    alike: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        where = cell.situation.value + (f" ({cell.link.name})" if cell.link and len(row.links) > 1 else "")
        end = ends.get(str(cell))
        ended = (str(end.status), _shown(end.last)) if end else ("-", "not run yet")
        alike.setdefault(ended, []).append(where)
    written = re.sub(r"\{(\w+)\}", lambda found: found[1].upper(), f"{row.name} {row.line}".strip())
    lines = [f"`{written}`", "", "| situation | status | last line |", "|---|---|---|"]
    lines += [f"| {', '.join(names)} | {status} | {last} |" for (status, last), names in alike.items()]
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
