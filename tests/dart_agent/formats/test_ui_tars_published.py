"""`integrations/ui_tars_published`, installed: the golden table of what it and `ui_tars` make of the same inputs.

Rows are those of the published parsers' known behaviour. A cell is a list of actions; an error (`Error`, with a word
of its reason) where the published code raises; `Nothing` where it goes on and nothing happens, which `ignored` says.
"""

from typing import NamedTuple

import pytest

from dart_agent.formats import ParsedResponse, get_format, variants
from dart_agent.formats.format_registry import FORMATS
from dart_agent.formats.grammar.action_format import MAX_TEXT
from dart_agent.models.coordinates import CoordinateSpace
from dart_gym.core import actions as a
from dart_gym.core.errors import ConfigurationError
from tests.dart_agent.formats.hostile_responses import HOSTILE, LIMIT_S, SIZE, timed, understood_or_said
from tests.helpers.linear_time import BEFORE, UNITS, assert_linear
from tests.helpers.packages import INTEGRATIONS, installed
from tests.helpers.parameters import slow_but

SCREEN = CoordinateSpace.for_image((1920, 1080))
PARSERS = ("dart", "osworld-uitars15-v1")
pytestmark = pytest.mark.process  # pip installs the package


@pytest.fixture(scope="module", autouse=True)
def package(tmp_path_factory):
    with installed(INTEGRATIONS / "ui_tars_published", tmp_path_factory.mktemp("ui_tars_published")):
        yield


@pytest.fixture
def published():
    """The formats that read as DART's rollouts and as OSWorld's agent do."""
    return tuple(get_format(f"ui_tars_published:{parser}") for parser in PARSERS)


class Error(NamedTuple):
    """The reason holds this."""

    says: str = ""


class Nothing(NamedTuple):
    """A step without effect; why holds this."""

    says: str = ""


Cell = list[a.Action] | Error | Nothing
CLICK = [a.Click(99, 198)]  # (100,200) of 1932x1092; pyautogui cuts 197.802 to 197
CUT = [a.Click(99, 197)]
BROKEN = Nothing("SyntaxError")
UNBOUND = Error("UnboundLocalError")


class Row(NamedTuple):
    text: str
    default: Cell
    dart: Cell
    osworld: Cell


def row(action: str, default: Cell, dart: Cell, osworld: Cell | None = None, thought: str = "x") -> Row:
    """A row; where `osworld` is left out it does as DART."""
    return Row(f"Thought: {thought}\nAction: {action}", default, dart, dart if osworld is None else osworld)


ROWS = [
    # Actions and their aliases
    row("click(start_box='(100,200)')", CLICK, CUT),
    row("left_single(start_box='(100,200)')", CLICK, CUT),
    row("click(start_box='(90,190,110,210)')", CLICK, CUT),
    row("left_double(start_box='(100,200)')", [a.Click(99, 198, count=2)], [a.Click(99, 197, count=2)]),
    row("right_single(start_box='(100,200)')", [a.Click(99, 198, "right")], [a.Click(99, 197, "right")]),
    row("hover(start_box='(100,200)')", [a.Move(99, 198)], [a.Move(99, 197)]),
    row(
        "drag(start_box='(100,200)', end_box='(300,400)')",
        [a.Drag(((99, 198), (298, 396)))],
        [a.Drag(((99, 197), (298, 395)))],
    ),
    row(
        "select(start_box='(100,200)', end_box='(300,400)')",
        [a.Drag(((99, 198), (298, 396)))],
        [a.Drag(((99, 197), (298, 395)))],
    ),
    row("hotkey(key='ctrl c')", [a.Press(("ctrl", "c"))], [a.Press(("ctrl", "c"))]),
    row("hotkey(key='space')", [a.Press(("space",))], [a.Press(("space",))]),
    row("hotkey(key='arrowleft')", [a.Press(("left",))], [a.Press(("left",))]),
    row("keydown(key='shift')", [a.KeyDown("shift")], [a.KeyDown("shift")]),
    row("keyup(key='shift')", [a.KeyUp("shift")], [a.KeyUp("shift")]),
    row("release(key='shift')", [a.KeyUp("shift")], [a.KeyUp("shift")], Nothing("unrecognized")),
    row("press(key='enter')", [a.Press(("enter",))], UNBOUND),
    row("scroll(start_box='(100,200)', direction='down')", [a.Scroll(99, 198, 0, 5)], [a.Scroll(99, 197, 0, 5)]),
    row("scroll(start_box='(100,200)', direction='up')", [a.Scroll(99, 198, 0, -5)], [a.Scroll(99, 197, 0, -5)]),
    row("scroll(start_box='(100,200)', direction='left')", [a.Scroll(99, 198, -5, 0)], Nothing("gives no code")),
    row("scroll(start_box='(100,200)', direction='right')", [a.Scroll(99, 198, 5, 0)], Nothing("gives no code")),
    row("scroll(direction='up')", [a.Scroll(dy=-5)], [a.Scroll(dy=-5)]),
    row("wait()", [a.Wait(5.0)], [a.Wait(2.0)], Nothing("unrecognized")),
    row("finished()", [a.Done()], [a.Done()]),
    row("finished(content='xxx')", [a.Done("xxx")], [a.Done("xxx")]),
    row("finished(content='it's done')", [a.Done("it's done")], [a.Done()], Error("can't parse")),
    row("call_user()", [a.Fail()], [a.Fail()], Nothing("unrecognized")),
    row("jump(start_box='(1,2)')", Error("unknown action"), Nothing("unrecognized")),
    row("middle_click(start_box='(100,200)')", [a.Click(99, 198, "middle")], Nothing("unrecognized")),
    row("move_to(start_box='(100,200)')", [a.Move(99, 198)], Nothing("unrecognized")),
    row("mouse_down()", [a.MouseDown()], Nothing("unrecognized")),
    row("open_app(app_name='x')", Error("unknown action"), Nothing("unrecognized")),
    row("drag(start_box='(100,200)')", Error("needs end_box"), Nothing("both ends")),
    row("scroll(start_box='(100,200)')", Error("needs direction"), Nothing("gives no code")),
    row("hotkey()", Error("needs key"), Nothing("all keys of ''")),
    row("hotkey(hotkey='ctrl c')", [a.Press(("ctrl", "c"))], [a.Press(("ctrl", "c"))]),
    # Places
    row("click(start_box='<|box_start|>(100,200)<|box_end|>')", CLICK, Error("ValueError")),
    row("click(start_box='[90, 190, 110, 210]')", CLICK, Error("ValueError")),
    row("click(start_box='<bbox>90 190 110 210</bbox>')", CLICK, Error("ValueError")),
    row("click(point='<point>100 200</point>')", CLICK, Error("TypeError")),
    row("click(start_box='(100, 200)')", CLICK, CUT),
    row("click(start_box='(100.4,200.2)')", [a.Click(100, 198)], [a.Click(99, 198)]),
    row("click(start_box=(100,200))", CLICK, Error("AttributeError")),
    row("click()", [a.Click()], Error("TypeError")),
    row("click(start_box='(1932,1092)')", [a.Click(1919, 1079)], [a.Click(1919, 1079)]),
    row("click(start_box='(5000,3000)')", [a.Click(4969, 2967)], [a.Click(1919, 1079)]),
    row("click(start_box='(-10,-10)')", [a.Click(-10, -10)], [a.Click(0, 0)]),
    row("click(start_box='(a,b)')", Error("is not a place"), Error("ValueError")),
    row("click(start_box='(1,2,3)')", Error("three numbers"), Error("UnboundLocalError")),
    row("click(start_box='(" + "1,2," * 300 + "1,2)')", Error("is not a place"), Error("ValueError")),
    row("click(start_box='(__import__(\"os\").getcwd(),1)')", Error("is not a place"), Error("ValueError")),
    row("click(start_box='()')", Error("is not a place"), Error("ValueError")),
    row("scroll(point='<point>100 200</point>', direction='down')", [a.Scroll(99, 198, 0, 5)], [a.Scroll(dy=5)]),
    row("click(start_box='(nan,1)')", Error("is not a place"), Error("NameError")),
    # Keys
    row("hotkey(key='ctrl+c')", [a.Press(("ctrl", "c"))], Nothing("does not know all keys")),
    row("hotkey(key='ctrl arrowleft')", [a.Press(("ctrl", "left"))], [a.Press(("ctrl",))]),
    row("hotkey(key='page down')", [a.Press(("pagedown",))], [a.Press(("down",))]),
    row("hotkey(key='Return')", [a.Press(("enter",))], [a.Press(("enter",))]),
    row("hotkey(key='shift arrowleft')", [a.Press(("shift", "left"))], [a.Press(("shift",))]),
    row("hotkey(key='CTRL C')", [a.Press(("ctrl", "c"))], [a.Press(("ctrl", "C"))]),
    row("hotkey(key='ctrl nosuchkey')", Error("unknown key"), [a.Press(("ctrl",))]),
    # Text
    row("type(content='hello')", [a.Type("hello")], [a.Type("hello")]),
    row("type(content='ls\\n')", [a.Type("ls\n")], [a.Type("ls\n")]),
    row("type(content='\\n')", [a.Type("\n")], Nothing("empty")),
    row("type(content='')", [a.Type("")], Nothing("empty")),
    row("type(content='  two')", [a.Type("  two")], [a.Type("two")]),
    row("type(content='a\\nb')", [a.Type("a\nb")], BROKEN),
    row("type(content='a\nb')", [a.Type("a\nb")], BROKEN),
    row("type(content='a\n\nb')", [a.Type("a\n\nb")], [a.Type("type(content='a")], Error("can't parse")),
    row("type(content='it\\'s')", [a.Type("it's")], [a.Type("it's")]),
    row("type(content='it's')", [a.Type("it's")], [a.Type("it's")]),
    row('type(content="it\'s")', [a.Type("it's")], [a.Type('type(content="it\'s")')]),
    row('type(content="hello")', [a.Type("hello")], [a.Type('type(content="hello")')]),
    row("type(content='C:\\new\\t.txt')", [a.Type("C:\new\t.txt")], BROKEN),
    row("type(content='C:\\\\new')", [a.Type("C:\\new")], [a.Type("C:\new")]),
    row("type(content='a\\\\b')", [a.Type("a\\b")], [a.Type("a\b")]),
    row("type(content='python\\\\n')", [a.Type("python\\n")], [a.Type("pytho\n")]),
    row("type(content='grüße')", [a.Type("grüße")], [a.Type("gre")]),
    row("type(content='see point=3')", [a.Type("see point=3")], [a.Type("see point=3")]),
    row("type(content='Action: wait()')", [a.Type("Action: wait()")], [], Error("can't parse")),
    # Several actions
    row("click(start_box='(100,200)')\n\nwait()", [*CLICK, a.Wait(5.0)], [a.Wait(2.0)], CUT),
    row("click(start_box='(100,200)')\n\nfinished()", [*CLICK, a.Done()], [a.Done()]),
    row(
        "click(start_box='(100,200)')\nhotkey(key='enter')",
        [*CLICK, a.Press(("enter",))],
        Nothing("DART skips"),
        Error(),
    ),
    row(
        "type(content='print(1)')\n\nhotkey(key='enter')",
        [a.Type("print(1)"), a.Press(("enter",))],
        [a.Type("print(1)"), a.Press(("enter",))],
    ),
    row("click(start_box='(100,200)'", Error("no closing"), Nothing("DART skips"), Error("can't parse")),
    # Around the action
    Row("no action here", Error("no 'Action:'"), Error("AssertionError"), Error("AssertionError")),
    Row("", Error("no 'Action:'"), Error("AssertionError"), Error("AssertionError")),
    Row("Thought: x\nAction:click(start_box='(100,200)')", CLICK, CUT, CUT),
    Row(
        "Thought: x\nAction: ```\nclick(start_box='(100,200)')\n```", CLICK, Nothing("DART skips"), Error("can't parse")
    ),
    Row("Action: click(start_box='(100,200)')<|im_end|>", CLICK, Nothing("DART skips"), Error("can't parse")),
    row("click(start_box='(100,200)')", CLICK, BROKEN, thought="say '''hello'''"),
    row("click(start_box='(100,200)')", CLICK, BROKEN, thought="in C:\\users"),
]
# The text holds the word `Action:`, so DART reads from there on: `wait()')` is no call, and it skips that.
ROWS = [row if row.dart != [] else row._replace(dart=Nothing("DART skips")) for row in ROWS]


def check(found: ParsedResponse, cell: Cell) -> None:
    if isinstance(cell, Error):
        assert not found.actions
        assert found.errors
        assert cell.says in found.problem
    elif isinstance(cell, Nothing):
        assert found.actions == (a.Wait(0.0),)
        assert not found.errors
        assert any(cell.says in passed.reason for passed in found.ignored)
    else:
        assert found.actions == tuple(cell)
        assert not found.errors


def test_its_entry_point_gives_the_format_its_name():
    assert FORMATS.describe()["ui_tars_published"] == "package dart-gym-ui-tars-published"
    assert variants("ui_tars_published") == sorted(PARSERS)
    with pytest.raises(ConfigurationError, match="known: dart, osworld"):
        get_format("ui_tars_published", parser="arnold")


def test_it_writes_and_describes_as_ui_tars_does(published):
    for chosen in published:
        assert chosen.describe() == get_format("ui_tars").describe()
        written = chosen.format(a.Press(("ctrl", "s")), SCREEN, "Save.")
        assert written == get_format("ui_tars").format(a.Press(("ctrl", "s")), SCREEN, "Save.")
        assert chosen.parse(written, SCREEN).actions == (a.Press(("ctrl", "s")),)


@pytest.mark.parametrize("case", ROWS, ids=lambda case: case.text[:60])
def test_golden_table(case, published):
    dart, osworld = published
    check(get_format("ui_tars").parse(case.text, SCREEN), case.default)
    check(dart.parse(case.text, SCREEN), case.dart)
    check(osworld.parse(case.text, SCREEN), case.osworld)


def test_nothing_is_silent(published):
    """Whatever a published parser drops is said."""
    for case in ROWS:
        for chosen in published:
            found = chosen.parse(case.text, SCREEN)
            assert found.actions or found.errors
            if found.actions == (a.Wait(0.0),):
                assert found.ignored, case.text


@pytest.mark.parametrize("parser", PARSERS)
def test_half_of_a_chord_is_said(parser):
    found = get_format(f"ui_tars_published:{parser}").parse("Action: hotkey(key='ctrl nosuchkey')", SCREEN)
    assert found.actions == (a.Press(("ctrl",)),)
    assert "nosuchkey" in found.ignored[0].reason
    assert found.ignored[0].span == (7, 36)


@pytest.mark.parametrize(
    ("text", "thought"),
    [
        ("Thought: look here\nAction: hotkey(key='esc')", "look here"),
        ("Reflection: bad\nAction_Summary: wait now\nAction: hotkey(key='esc')", "wait now"),
        ("Action_Summary: wait now\nAction: hotkey(key='esc')", "wait now"),
    ],
)
def test_published_thoughts(text, thought, published):
    assert {chosen.parse(text, SCREEN).thought for chosen in published} == {thought}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_input_costs_little(case):
    for parser in PARSERS:
        found, seconds = timed(f"ui_tars_published:{parser}", HOSTILE[case])
        understood_or_said(found)
        assert seconds < LIMIT_S, parser


@pytest.mark.parametrize("parser", PARSERS)
def test_what_is_thought_is_not_read(parser):
    chosen = get_format(f"ui_tars_published:{parser}")
    wait = "Thought: x\nAction: wait()"
    found = chosen.parse(f"<think>Action: finished()</think>{wait}", SIZE)
    assert found.actions == chosen.parse(wait, SIZE).actions
    assert found.thought == "Action: finished()\nx"
    assert "ended while thinking" in chosen.parse(f"{wait}\n<think>Action: finished()", SIZE).problem


@pytest.mark.parametrize("parser", PARSERS)
def test_longest_response_is_read(parser):
    found, seconds = timed(f"ui_tars_published:{parser}", "x" * (MAX_TEXT + 1))
    assert "at most" in found.problem
    assert seconds < LIMIT_S


@pytest.mark.parametrize("parser", slow_but(["dart"], PARSERS))
def test_hostile_families_are_read_in_linear_time(parser):
    chosen = get_format(f"ui_tars_published:{parser}")
    for before in BEFORE:
        for unit in UNITS:
            assert_linear(lambda text: chosen.parse(text, SIZE), before, unit, "x")
