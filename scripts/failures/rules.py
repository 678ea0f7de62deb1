"""What every cell has to keep to: the promises of docs/reference/failures.md, as a function of how a command ended."""

from __future__ import annotations

from scripts.failures.cells import Cell, End
from scripts.failures.situations import OF_ITEMS, OF_SERVERS, Situation

INTERRUPTED = 130
SAID_S = 25.0
"""A wait of 10 seconds is said; the rest is what a program takes to load on a busy machine."""
_FAILING = (*OF_SERVERS, *OF_ITEMS, Situation.DISK_FULL, Situation.NO_PERMISSION)
_UNREAD = (Situation.OUTPUT_FULL, Situation.CLOSED_PIPE)
_MISHAPS = ("Traceback (most recent call last)", "Exception ignored", "unexpected ", "no end within", "\x1b[")
_FULL = ("space", "full", "free")
_OUTPUT = "standard output"


def broken(cell: Cell, end: End) -> list[str]:
    """Return which rules a cell breaks. Pure."""
    found = [f"{mishap.strip()!r} in its output" for mishap in _MISHAPS if mishap in end.output]
    found += [*_wrong_status(cell, end), *_wrong_files(cell, end), *_wrong_words(cell, end)]
    return found


def fails(cell: Cell) -> bool:
    """Whether the command cannot do its work in the situation."""
    if cell.situation in (Situation.NOTHING, Situation.WRONG_DIRECTORY):
        return bool(cell.row.needs)
    return cell.situation in _FAILING


def _wrong_status(cell: Cell, end: End) -> list[str]:
    row, situation = cell.row, cell.situation
    if situation in (Situation.INTERRUPTED, Situation.INTERRUPTED_EARLY):
        expected: tuple[int, ...] = (INTERRUPTED, 0) if row.ready else (INTERRUPTED,)
    elif situation in _UNREAD:
        expected = (1, *(one for one in row.ends if one))
    else:
        expected = (1,) if fails(cell) else row.ends
    return [] if end.status in expected else [f"status {end.status}, not {' or '.join(map(str, expected))}"]


def _wrong_files(cell: Cell, end: End) -> list[str]:
    seen_at_once = cell.situation in (Situation.NOTHING, Situation.WRONG_DIRECTORY) and fails(cell)
    allowed = cell.row.makes if cell.row.makes and not fails(cell) else None
    made = [path for path in end.made if allowed is None or not path.startswith(allowed)]
    return [f"it made {', '.join(made[:5])}"] if made and (cell.row.reads or seen_at_once) else []


def _wrong_words(cell: Cell, end: End) -> list[str]:
    found = []
    if cell.situation in OF_SERVERS and not end.asked:
        found.append("it never asked the server, so it ended for another reason")
    if end.status == 1 and not end.last and cell.situation is not Situation.CLOSED_PIPE:
        found.append("it says nothing")
    if cell.situation is Situation.CLOSED_PIPE and "roken pipe" in end.output:
        found.append("it talks of a pipe")
    if cell.situation is Situation.OUTPUT_FULL and "No space left" in end.output and _OUTPUT not in end.output:
        found.append("it does not say that standard output is what is full")
    if cell.situation is Situation.DISK_FULL and not any(word in end.output for word in _FULL):
        found.append("it does not say that the disk is full")
    said = "waiting for" in end.output or "trying again" in end.output
    if cell.situation in OF_SERVERS and end.seconds > SAID_S and not said:
        found.append(f"a silent wait of {end.seconds:.0f} s")
    return found
