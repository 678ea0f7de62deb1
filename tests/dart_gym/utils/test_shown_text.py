"""Text of others moves no cursor, hides nothing, and is markup nowhere."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from dart_agent.commands import agent_cli
from dart_agent.episodes.play import InMemory
from dart_agent.episodes.trajectory import Step
from dart_gym.utils.shown_text import as_cell, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain [/nope] \u00fc \u65e5", "plain [/nope] \u00fc \u65e5"),
        ("a\nb\tc", "a\nb\tc"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("\x9b31m\r\x00\x7f", "\\x9b31m\\x0d\\x00\\x7f"),
        ("\u202etxt.exe\u2066", "\\u202etxt.exe\\u2066"),
        ("\udcff", "\\udcff"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_control_characters_are_shown_as_escapes(text, shown):
    assert printable(text) == shown


@pytest.mark.parametrize("name", ["[/nope]", "a [bold]b[/bold] \\[x]", "[link=file:///etc]x", "\x1b[31mred"])
def test_a_name_in_a_table_is_no_markup(name):
    console = Console(file=(written := io.StringIO()), width=80)
    table = Table(as_cell("[/]"))
    table.add_row(as_cell(name))
    console.print(table)
    assert printable(name) in written.getvalue() and "\x1b" not in written.getvalue()


@given(st.text())
def test_nothing_that_a_terminal_obeys_is_left(text):
    found = printable(text)
    assert not any(character < " " and character not in "\n\t" or "\x7f" <= character < "\xa0" for character in found)
    assert printable(found) == found
    found.encode()


def test_what_a_model_says_moves_no_cursor_of_the_terminal_that_shows_it(monkeypatch):
    monkeypatch.setattr(agent_cli, "console", Console(file=(written := io.StringIO()), width=80))
    step = Step(thought="\x1b[2Jhm [/nope]", error="\x9b31m", action_error="\x1b]0;title\x07")
    agent_cli.PrintedSteps(InMemory()).step(step)
    assert written.getvalue() == "thought: \\x1b[2Jhm [/nope]\n\\x9b31m\n\\x1b]0;title\\x07\n"
