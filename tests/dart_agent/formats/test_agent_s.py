"""Agent-S: descriptions of elements as values, and how a grounder gives them places."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_agent.formats import get_format
from dart_agent.formats.grammar.element_actions import ClickOn, DragOn, ScrollOn, TypeInto, ground, targets
from dart_agent.grounding.candidate import Candidate
from dart_agent.presets import get_preset
from dart_gym.core import actions as a
from dart_gym.core.actions import as_action
from tests.dart_agent.formats.action_strategies import BUTTON, TEXT

SIZE = (800, 600)
AGENT_S = get_format("agent_s")


def parse(code):
    return AGENT_S.parse(f"(Next Action)\nI go on.\n```python\n{code}\n```", SIZE)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("agent.click('the Save button')", ClickOn("the Save button")),
        ("agent.click('it', 2, 'right', ['ctrl'])", ClickOn("it", 2, "right", ("ctrl",))),
        ("agent.click(element_description='it', num_clicks=1, button_type='left', hold_keys=[])", ClickOn("it")),
        ("agent.type('the box', 'hi', True, enter=True)", TypeInto("the box", "hi", True, True)),
        ("agent.type(text='hi')", a.Type("hi")),
        ("agent.drag_and_drop('a', 'b', hold_keys=['shift'])", DragOn("a", "b", ("shift",))),
        ("agent.scroll('the list', 5)", ScrollOn("the list", 0, -5)),
        ("agent.scroll('the list', -5, shift=True)", ScrollOn("the list", -5, 0)),
        ("agent.hotkey(['ctrl', 'c'])", a.Press(("ctrl", "c"))),
        ("agent.wait(1.5)", a.Wait(1.5)),
        ("agent.done()", a.Done()),
        ("agent.fail()", a.Fail()),
    ],
)
def test_calls(code, expected):
    found = parse(code)
    assert found.actions == (expected,)
    assert not found.errors
    assert found.thought == "(Next Action)\nI go on."


def test_calls_of_several_actions():
    typed = (a.Press(("ctrl", "a")), a.Press(("backspace",)), a.Type("x"), a.Press(("enter",)))
    assert parse("agent.type(text='x', overwrite=True, enter=True)").actions == typed
    held = (a.KeyDown("shift"), a.Press(("left",)), a.Press(("left",)), a.KeyUp("shift"))
    assert parse("agent.hold_and_press(['shift'], ['left', 'left'])").actions == held
    assert parse("agent.open('Files')").actions[2] == a.Type("Files")


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("agent.click()", "element_description"),
        ("agent.click('')", "a description"),
        ("agent.click('it', 9)", "num_clicks must be"),
        ("agent.click('it', button_type='wheel')", "left, middle or right"),
        ("agent.click('it', 'x')", "a number"),
        ("agent.click('it', colour='red')", "no argument colour"),
        ("agent.click('it', element_description='that')", "each once"),
        ("agent.scroll('it', 1000)", "clicks must be"),
        ("agent.type('it', text='x', enter='yes')", "true or false"),
        ("agent.set_cell_values({'A1': 1}, 'calc', 'Sheet1')", "more than mouse and keyboard"),
        ("agent.call_code_agent('do it')", "more than mouse and keyboard"),
        ("agent.jump()", "is not known"),
        ("click('it')", "is not known"),
        ("agent.click(open('x'))", "only literals"),
    ],
)
def test_mistakes(code, says):
    found = parse(code)
    assert not found.actions
    assert says in found.problem


ELEMENT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=50).filter(lambda text: text.strip() == text)
UNGROUNDED = st.one_of(
    st.builds(
        lambda e, n, b, m: ClickOn(e, n, b, tuple(m)),
        ELEMENT,
        st.integers(1, 3),
        BUTTON,
        st.lists(st.just("ctrl"), max_size=2),
    ),
    st.builds(TypeInto, ELEMENT, TEXT, st.booleans(), st.booleans()),
    st.builds(lambda s, e, m: DragOn(s, e, tuple(m)), ELEMENT, ELEMENT, st.lists(st.just("shift"), max_size=1)),
    st.builds(lambda e, n: ScrollOn(e, n, 0), ELEMENT, st.integers(-100, 100)),
    st.builds(lambda e, n: ScrollOn(e, 0, n), ELEMENT, st.integers(-100, 100)),
)


@given(UNGROUNDED)
def test_round_trip_of_descriptions(action):
    found = AGENT_S.parse(AGENT_S.format(action, SIZE), SIZE)
    assert found.actions == (action,)


class Places:
    """A grounder that knows some places and counts the questions."""

    def __init__(self, **places):
        self.places, self.asked = places, []

    async def locate(self, description, screenshot, k=1):
        assert screenshot == "the screenshot"
        self.asked.append(description)
        return [Candidate(*place)] if (place := self.places.get(description)) else []


async def test_grounding():
    parsed = parse(
        "agent.click('a', 2)\nagent.type('b', 'x', enter=True)\nagent.drag_and_drop('a', 'b')\nagent.scroll('b', 3)"
    )
    assert targets(parsed) == ["a", "b"]
    with pytest.raises(TypeError):
        as_action(parsed.actions[0])  # no desktop takes a description
    grounder = Places(a=(1, 2), b=(3, 4))
    found = await ground(parsed, grounder, "the screenshot")
    assert grounder.asked == ["a", "b"], "each description once"
    assert found.actions == (
        a.Click(1, 2, count=2),
        *(a.Click(3, 4), a.Type("x"), a.Press(("enter",))),
        a.Drag(((1, 2), (3, 4))),
        a.Scroll(3, 4, dy=-3),
    )
    assert found.thought == parsed.thought


async def test_what_is_not_found_is_an_error():
    found = await ground(parse("agent.click('a')\nagent.click('c')"), Places(a=(1, 2)), "the screenshot")
    assert not found.actions
    assert found.problem == "there is no element 'c' on the screen"


async def test_errors_ask_nothing():
    grounder = Places()
    parsed = parse("agent.click('a')\nagent.jump()")
    assert await ground(parsed, grounder, "the screenshot") is parsed
    assert grounder.asked == []


def test_two_calls_where_one_is_allowed_are_an_error_that_says_so():
    """Agent-S3's own check of a response (`single_action_check`)."""
    two = "I go on.\n```python\nagent.click('the File menu')\nagent.wait(1)\n```"
    assert not get_format("agent_s").parse(two, (800, 600)).errors
    found = get_format("agent_s:s3").parse(two, (800, 600))
    (error,) = found.errors
    assert error.reason == "one call is allowed in a response, there are 2"
    assert two[slice(*error.span)] == "agent.wait(1)"
    assert get_preset("agent-s3").format == "agent_s:s3"
