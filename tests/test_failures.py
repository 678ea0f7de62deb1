"""The table of failures: every command has a row, and every cell that is run again keeps to the rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.failures.cells import Cell, End, cells_of, every_cell, run
from scripts.failures.rows import PACKAGED, ROWS, Row
from scripts.failures.rules import broken
from scripts.failures.situations import OF_ITEMS, OF_SERVERS, Situation
from scripts.failures.world import PARTS, World
from tests.helpers.all_commands import every_command

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "failures.md"
SERVING = {"dart-gym mcp"}
"""It serves until its client goes; each call has a time limit of its own."""
QUICK = [
    ("dart-gym tasks check", Situation.NOTHING),
    ("dart-train status", Situation.WRONG_DIRECTORY),
    ("dart-agent run", Situation.REFUSED),
    ("dart-gym status", Situation.HANGS),
    ("dart-agent run", Situation.UNAUTHORIZED),
    ("dart-gym status", Situation.TOO_MANY),
    ("dart-gym status", Situation.SERVER_ERROR),
    ("dart-gym status", Situation.HTML),
    ("dart-gym tasks mirror", Situation.HALF),
    ("dart-agent eval", Situation.SOME_LOST),
    ("dart-gym init", Situation.DISK_FULL),
    ("dart-agent presets", Situation.OUTPUT_FULL),
    ("dart-train init", Situation.NO_PERMISSION),
    ("dart-gym token", Situation.INTERRUPTED_EARLY),
    ("dart-gym status", Situation.INTERRUPTED),
    ("dart-gym doctor", Situation.CLOSED_PIPE),
    ("dart-agent presets", Situation.NO_TERMINAL),
]
"""One cell of most columns: those that take a few seconds."""


def test_every_command_has_a_row():
    found = every_command()
    of_packages = {name for name, command in found.items() if command.callback.__module__.startswith("dart_gym_")}
    rows = {row.name for row in ROWS}
    assert rows - set(PACKAGED) == {name for name in found if " bench" not in name} - of_packages - set(PACKAGED)
    assert set(PACKAGED) <= rows & found.keys()
    assert len(ROWS) == len(rows) > 40


def test_every_command_that_may_wait_for_a_server_bounds_the_wait():
    """Those of the table, and whatever has an option with an address."""
    asking = {"--url", "--engine-url", "--engine", "--ray"}
    linked = {row.name for row in ROWS if row.links}
    for name, command in every_command().items():
        options = {option for parameter in command.params for option in parameter.opts}
        if (name in linked or options & asking) and name not in SERVING and " bench" not in name:
            assert "--timeout" in options, name


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_situation_of_a_row_is_run_or_has_a_reason(row: Row):
    tried = {cell.situation for cell in cells_of(row)}
    for situation in Situation:
        of_links = all(situation in link.reasons for link in row.links) and situation in OF_SERVERS
        assert situation in tried or row.reason(situation) or of_links, situation


def test_the_page_has_every_command():
    text = PAGE.read_text(encoding="utf-8")
    assert [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## dart-")] == [
        row.name for row in ROWS if list(cells_of(row))
    ]
    assert "Traceback" not in text and "no end within" not in text and "unexpected " not in text


ROW = Row("dart-x", "{config}", ("config",), reads=True, several=True)


@pytest.mark.parametrize(
    ("situation", "end", "fault"),
    [
        (Situation.NOTHING, End(1, "there is none", (), 1), ""),
        (Situation.NOTHING, End(0, "all is well", (), 1), "status 0, not 1"),
        (Situation.NOTHING, End(1, "there is none", ("place/runs",), 1), "it made place/runs"),
        (Situation.NOTHING, End(1, "", (), 1), "it says nothing"),
        (Situation.NOTHING, End(1, "Traceback (most recent call last)", (), 1), "Traceback"),
        (Situation.DISK_FULL, End(1, "sorry", (), 1), "does not say that the disk is full"),
        (Situation.HANGS, End(1, "late", (), 60), "a silent wait of 60 s"),
        (Situation.HANGS, End(1, "waiting for it for 10 s now\nlate", (), 60), ""),
        (Situation.REFUSED, End(1, "there is no model", (), 1, asked=False), "never asked the server"),
        (Situation.INTERRUPTED, End(1, "stopped", (), 1), "status 1, not 130"),
        (Situation.CLOSED_PIPE, End(0, "", (), 1), "status 0, not 1"),
        (Situation.CLOSED_PIPE, End(1, "", (), 1), ""),
        (Situation.OUTPUT_FULL, End(1, "cannot use a file: No space left on device", (), 1), "standard output"),
        (Situation.OUTPUT_FULL, End(1, "cannot write to standard output: No space left on device", (), 1), ""),
        (Situation.NO_TERMINAL, End(0, "\x1b[1mred", (), 1), "in its output"),
    ],
)
def test_rules(situation, end, fault):
    found = broken(Cell(ROW, situation), end)
    assert not found if not fault else any(fault in one for one in found), found


def _cell(name: str, situation: Situation) -> Cell:
    return next(cell for cell in every_cell() if cell.row.name == name and cell.situation is situation)


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> World:
    return World(tmp_path_factory.mktemp("failures") / "world")


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(600)
def test_what_commands_are_given_can_be_made(world):
    world.need(*PARTS)
    assert (world.root / "evals" / "b").is_dir() and (world.root / "run.tar").is_file()


@pytest.mark.thorough
@pytest.mark.process
@pytest.mark.parametrize(("name", "situation"), QUICK, ids=lambda one: getattr(one, "value", one))
def test_a_part_of_the_table(name, situation, world):
    cell = _cell(name, situation)
    end = run(cell, world)
    assert not broken(cell, end), end


def test_the_part_has_most_situations():
    assert {situation for _, situation in QUICK} >= {*Situation} - {*OF_ITEMS}


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_table(row: Row, world):
    faults = [f"{cell}: {fault}" for cell in cells_of(row) for fault in broken(cell, run(cell, world))]
    assert not faults, faults
