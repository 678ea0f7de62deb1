"""UI-TARS actions both ways: golden numbers, every accepted spelling, and whatever a model may write."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dart_agent.formats import formats, get_format
from dart_agent.formats.grammar.action_format import ParsedResponse
from dart_agent.formats.grammar.calls import parse_calls, quote, unescape
from dart_agent.models.coordinates import CoordinateSpace
from dart_gym.core import actions as a
from dart_gym.core.errors import ConfigurationError
from tests.dart_agent.formats.action_strategies import TEXT, any_action

FULL_HD = CoordinateSpace.for_image((1920, 1080))
SAME = CoordinateSpace((1000, 800), (1000, 800))
FORMAT = get_format("ui_tars")


def parse(call: str, space: CoordinateSpace = SAME) -> a.Action:
    response = FORMAT.parse(f"Thought: x\nAction: {call}", space)
    assert len(response.actions) == 1
    return response.actions[0]


def test_golden_coordinates():
    assert FULL_HD.model == (1932, 1092)
    x, y = FULL_HD.to_screen(960, 546)
    assert (round(x, 3), round(y, 3)) == (954.037, 540.0)
    assert parse("click(start_box='(960,546)')", FULL_HD) == a.Click(954, 540)
    path = [tuple(round(v, 3) for v in FULL_HD.to_screen(*point)) for point in ((100, 200), (300, 400))]
    assert path == [(99.379, 197.802), (298.137, 395.604)]
    assert parse("drag(start_box='(100,200)', end_box='(300,400)')", FULL_HD) == a.Drag(((99, 198), (298, 396)))
    relative = CoordinateSpace.relative((1920, 1080), 1000)
    assert parse("click(start_box='(500,500)')", relative) == a.Click(960, 540)


@pytest.mark.parametrize(
    "box",
    [
        "start_box='(50,30)'",
        "start_box='(50, 30)'",
        "start_box=' ( 50 , 30 ) '",
        'start_box="(50,30)"',
        "start_box='<|box_start|>(50,30)<|box_end|>'",
        "start_box='(40,20,60,40)'",
        "start_box='[40, 20, 60, 40]'",
        "start_box='<bbox>40 20 60 40</bbox>'",
        "start_box='<|box_start|>(40,20),(60,40)<|box_end|>'",
        "point='<point>50 30</point>'",
        "start_point='<point>50 30</point>'",
        "start_box='50,30'",
        "start_box='50 30'",
        "start_box='(50.2,29.9)'",
        "start_box=(50,30)",
        "start_box=[50,30]",
        "point=<point>50 30</point>",
        "start_box=<|box_start|>(50,30)<|box_end|>",
        "'(50,30)'",
    ],
)
def test_places(box):
    assert parse(f"click({box})") == a.Click(50, 30)


@pytest.mark.parametrize(
    ("call", "action"),
    [
        ("left_single(start_box='(1,2)')", a.Click(1, 2)),
        ("left_double(start_box='(1,2)')", a.Click(1, 2, count=2)),
        ("right_single(start_box='(1,2)')", a.Click(1, 2, "right")),
        ("CLICK(start_box='(1,2)')", a.Click(1, 2)),
        ("click()", a.Click()),
        ("click(start_box='')", a.Click()),
        ("click(start_box='(1,2)', modifiers='ctrl')", a.Click(1, 2, modifiers=("ctrl",))),
        ("hover(start_box='(1,2)')", a.Move(1, 2)),
        ("drag(start_box='(1,2)', end_box='(3,4)')", a.Drag(((1, 2), (3, 4)))),
        ("select(end_box='(3,4)', start_box='(1,2)')", a.Drag(((1, 2), (3, 4)))),
        ("drag(start_point='<point>1 2</point>', end_point='<point>3 4</point>')", a.Drag(((1, 2), (3, 4)))),
        ("hotkey(key='ctrl c')", a.Press(("ctrl", "c"))),
        ("hotkey(key='ctrl+c')", a.Press(("ctrl", "c"))),
        ("hotkey(key='Ctrl+C')", a.Press(("ctrl", "c"))),
        ("hotkey(key='ctrl-c')", a.Press(("ctrl", "c"))),
        ("hotkey(key='ctrl++')", a.Press(("ctrl", "+"))),
        ("hotkey(key='ctrl +')", a.Press(("ctrl", "+"))),
        ("hotkey(key='ctrl + c')", a.Press(("ctrl", "c"))),
        ("hotkey(key='ctrl plus')", a.Press(("ctrl", "+"))),
        ("hotkey(key='ctrl arrowleft')", a.Press(("ctrl", "left"))),
        ("hotkey(key='page down')", a.Press(("pagedown",))),
        ("hotkey(key='ctrl Page_Down')", a.Press(("ctrl", "pagedown"))),
        ("hotkey(key='ctrl page down')", a.Press(("ctrl", "pagedown"))),
        ("hotkey(key='up left')", a.Press(("up", "left"))),
        ("hotkey(key=' ')", a.Press(("space",))),
        ("hotkey(key='alt space')", a.Press(("alt", "space"))),
        ("hotkey(key='-')", a.Press(("-",))),
        ("press(key='enter')", a.Press(("enter",))),
        ("press('Return')", a.Press(("enter",))),
        ("keydown(key='shift')", a.KeyDown("shift")),
        ("keyup(key='shift')", a.KeyUp("shift")),
        ("release(key='shift')", a.KeyUp("shift")),
        ("scroll(start_box='(1,2)', direction='down')", a.Scroll(1, 2, 0, 5)),
        ("scroll(direction='up', start_box='(1,2)')", a.Scroll(1, 2, 0, -5)),
        ("scroll(start_box='(1,2)', direction='left')", a.Scroll(1, 2, -5, 0)),
        ("scroll(point='<point>1 2</point>', direction=right)", a.Scroll(1, 2, 5, 0)),
        ("scroll(direction='down')", a.Scroll(dy=5)),
        ("wait()", a.Wait(5.0)),
        ("wait(2)", a.Wait(2.0)),
        ("finished()", a.Done()),
        ("finished(content='xxx')", a.Done("xxx")),
        ("finished(content='it's done')", a.Done("it's done")),
        ("call_user()", a.Fail()),
    ],
)
def test_actions(call, action):
    assert parse(call) == action


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("'hello'", "hello"),
        ("'a\nb'", "a\nb"),
        ("'a\n\nb'", "a\n\nb"),
        (r"'a\nb'", "a\nb"),
        (r"'it\'s'", "it's"),
        ("'it's'", "it's"),
        ('"it\'s"', "it's"),
        ("'say \"hi\"'", 'say "hi"'),
        (r"'C:\\new'", "C:\\new"),
        (r"'C:\docs'", "C:\\docs"),
        (r"'python\n'", "python\n"),
        (r"'python\\n'", "python\\n"),
        (r"'\n'", "\n"),
        ("'\n'", "\n"),
        ("''", ""),
        ("'grüße 你好 😀'", "grüße 你好 😀"),
        (r"'\u00fc\x41\ud83d\ude00'", "üA😀"),
        (r"'\ud800'", "\\ud800"),
        ("'f(x), y = (1)'", "f(x), y = (1)"),
        ("'Action: wait()'", "Action: wait()"),
        ("'''", "'"),
    ],
)
def test_typed_text(content, text):
    assert parse(f"type(content={content})") == a.Type(text)


def test_several_actions():
    two = (a.Click(1, 2), a.Type("a\n\nb"))
    for between in ("\n\n", "\n", " ", ";\n"):
        text = f"Thought: t\nAction: click(start_box='(1,2)'){between}type(content='a\n\nb')"
        assert FORMAT.parse(text, SAME) == ParsedResponse("t", two)


@pytest.mark.parametrize(
    ("text", "thought"),
    [
        ("Thought: look\nAction: wait()", "look"),
        ("Thought: '''tricky''' \\u\nAction: wait()", "'''tricky''' \\u"),
        ("Action: wait()", ""),
        ("Action:wait()<|im_end|>", ""),
        ("just talk\nAction: wait()\n", "just talk"),
        ("Thought: the Action: line comes next\nAction: wait()", "the Action: line comes next"),
        ("Reflection: bad\nAction_Summary: wait now\nAction: wait()", "Reflection: bad\nAction_Summary: wait now"),
    ],
)
def test_thoughts(text, thought):
    assert FORMAT.parse(text, SAME) == ParsedResponse(thought, (a.Wait(5.0),))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no 'Action:'"),
        ("I click(start_box='(1,2)')", "no 'Action:'"),
        ("Action:", "no action after"),
        ("Action: click", "expected an action"),
        ("Action: click(start_box='(1,2)'", "no closing ' followed by ')'"),
        ("Action: click(start_box=(1,2)", "')' is missing"),
        ("Action: click(start_box='(1,2)", "no closing '"),
        ("Action: click(start_box='(1,2)') and so on", "expected an action"),
        ("Action: click(start_box='(a,b)')", "is not a place"),
        ("Action: click(start_box='(1)')", "is not a place"),
        ("Action: click(start_box='(1,2,3)')", "three numbers"),
        ("Action: click(start_box='(1,2,3,4,5)')", "is not a place"),
        ("Action: click(start_box='(1,2)', speed='3')", "has no argument speed"),
        ("Action: click(start_box='(1,2)', start_box='(1,2)')", "names of their own"),
        (f"Action: click(start_box='({'9' * 400},1)')", "finite"),
        ("Action: click(start_box='(99999999,1)')", "integer in"),
        ("Action: drag(start_box='(1,2)')", "end_box"),
        ("Action: hotkey(key='')", "needs key"),
        ("Action: hotkey(key='ctrl foo')", "unknown key 'foo'"),
        ("Action: hotkey(key='ctrll')", "did you mean 'ctrl"),
        ("Action: keydown(key='ctrl c')", "one key"),
        ("Action: scroll(start_box='(1,2)')", "direction"),
        ("Action: scroll(start_box='(1,2)', direction='sideways')", "down, up, left or right"),
        ("Action: type()", "content"),
        ("Action: wait(seconds='long')", "must be a number"),
        ("Action: wait(1e400)", "must be a number"),
        ("Action: wait(1000)", "seconds must be in"),
        ("Action: jump(start_box='(1,2)')", "unknown action 'jump'"),
        ("Action: __import__('os').system('x')", "expected an action"),
    ],
)
def test_errors_say_what_is_wrong(text, says):
    response = FORMAT.parse(text, SAME)
    assert not response.actions
    (error,) = response.errors
    assert says in error.reason
    assert len(error.reason) < 300
    assert 0 <= error.span[0] <= error.span[1] <= len(text)


SEED = "<seed:tool_call>{}</seed:tool_call>"


@pytest.mark.parametrize(
    ("body", "actions"),
    [
        ("<function=click><parameter=point><point>500 500</point></parameter></function>", (a.Click(960, 540),)),
        (
            '<function name="type"><parameter name="content" string="true">it\'s\n"so"</parameter></function>',
            (a.Type('it\'s\n"so"'),),
        ),
        (
            "\n<function=hotkey>\n<parameter=key>ctrl c</parameter>\n</function>\n<function=wait></function>",
            (a.Press(("ctrl", "c")), a.Wait(5.0)),
        ),
    ],
)
def test_tags_of_seed(body, actions):
    found = get_format("ui_tars:doubao").parse(f"<think>I see.</think>\n{SEED.format(body)}", (1920, 1080))
    assert found == ParsedResponse("I see.", actions)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("", "no <function=...>"),
        ("<function=click><parameter=point>1 2", "</function> is missing"),
        ("<function=click><parameter=point>1 2</function>", "</parameter> is missing"),
        ("<function=click><parameter=key>1</parameter><parameter=key>2</parameter></function>", "given twice"),
        ("<function=jump></function>", "unknown action 'jump'"),
        ("<function=wait></function>" * 33, "more than 32"),
    ],
)
def test_mistakes_in_tags_of_seed(body, says):
    assert says in get_format("ui_tars:doubao").parse(SEED.format(body), (1920, 1080)).problem


def test_tags_of_seed_in_a_typed_text_are_text():
    text = "Action: type(content='<seed:tool_call><function=wait></function>')"
    assert FORMAT.parse(text, SAME).actions == (a.Type("<seed:tool_call><function=wait></function>"),)


def test_edges_of_the_screen():
    assert parse("click(start_box='(1932,1092)')", FULL_HD) == a.Click(1919, 1079)
    assert parse("click(start_box='(0,0)')", FULL_HD) == a.Click(0, 0)
    assert parse("click(start_box='(5000,-3)')", FULL_HD) == a.Click(4969, -3), "the screen reports it, not the parser"


def test_unknown_format_suggests():
    with pytest.raises(ConfigurationError, match="did you mean 'ui_tars'"):
        get_format("uitars")
    assert "ui_tars" in formats()


def test_long_text_takes_little_time():
    for text in (
        "Action: type(content='" * 3000,
        "Action: " * 10000,
        "Action: type(content='" + "' " * 20000,
        "(" * 50000,
    ):
        assert FORMAT.parse(text + "<", SAME).errors


# Any text
PIECES = st.sampled_from(
    [
        "Action: ",
        "Thought: ",
        "click",
        "type",
        "drag",
        "hotkey",
        "scroll",
        "wait",
        "(",
        ")",
        "'",
        '"',
        "\\",
        ",",
        "=",
        " ",
    ]
    + ["start_box=", "end_box=", "content=", "key=", "direction=", "(1,2)", "<point>", "</point>", "down", "ctrl", "+"]
    + [
        "\n",
        "\n\n",
        "<|box_start|>",
        "9" * 30,
        "-",
        ".",
        "[",
        "]",
        "\\u12",
        "\\ud800",
        "é",
        "via=",
        "count=",
        "seconds=",
    ]
)


@given(st.one_of(st.text(), st.lists(PIECES, max_size=30).map("".join), st.lists(PIECES).map("Action: ".join)))
@example("Action: hotkey(key='\\u3000')")
def test_any_text_parses_or_says_why(text):
    response = FORMAT.parse(text, FULL_HD)
    assert response.actions or response.errors
    assert all(error.reason for error in response.errors)
    assert all(isinstance(action, a.Action) for action in response.actions)


# Round trip
SPACES = [
    SAME,
    FULL_HD,
    CoordinateSpace.for_image((3840, 2160)),
    CoordinateSpace.relative((1920, 1080), 1000),
]
ACTIONS_IN_SPACE = st.sampled_from(SPACES).flatmap(
    lambda space: st.tuples(st.just(space), st.lists(any_action(*space.screen), min_size=1, max_size=3))
)


@given(ACTIONS_IN_SPACE, st.sampled_from(["", "I click.", "Do it.\nAction: wait() comes later", "it's (so)"]))
def test_round_trip(case, thought):
    space, actions = case
    text = FORMAT.format(tuple(actions), space, thought)
    assert FORMAT.parse(text, space) == ParsedResponse(thought, tuple(actions)), text


@given(TEXT)
def test_quote_is_the_inverse_of_reading(text):
    assert parse_calls(f"f(x={quote(text)})")[0].arguments == {"x": text}


def test_unescape_leaves_unknown_escapes():
    assert unescape(r"\d \q \U00110000 \u12") == r"\d \q \U00110000 \u12"


def test_published_spelling():
    actions = (a.Click(954, 540), a.Press(("ctrl", "c")), a.Type("it's\n"), a.Scroll(1, 2, 0, 5), a.Wait(5.0), a.Done())
    assert FORMAT.format(actions, SAME, "go").split("\n\n") == [
        "Thought: go\nAction: click(start_box='(954,540)')",
        "hotkey(key='ctrl c')",
        r"type(content='it\'s\n')",
        "scroll(start_box='(1,2)', direction='down')",
        "wait()",
        "finished()",
    ]
