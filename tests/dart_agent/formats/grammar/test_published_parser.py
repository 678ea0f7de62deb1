"""Side by side with PyPI's `ui-tars` 0.5.1: the same actions, except for its known defects, which are shown.

What its generated source would do is read by our `pyautogui` format, which runs nothing.
"""

import re
from collections import Counter

import pytest
from ui_tars.action_parser import parse_action_to_structure_output, parsing_response_to_pyautogui_code
from ui_tars.action_parser import smart_resize as published_smart_resize

from dart_agent.formats import get_format
from dart_agent.formats.grammar.action_format import InexpressibleError
from dart_agent.models.coordinates import CoordinateSpace, smart_resize
from dart_gym.core import actions as a
from dart_lab.agent.responses import SCREEN, responses

COUNT = 2000
SPACE = CoordinateSpace.for_image(SCREEN)
DOCSTRING = re.compile(r"'''.*?'''", re.DOTALL)


def published(text: str) -> tuple[a.Action, ...]:
    """What the package's source would do, without its pauses."""
    found = parse_action_to_structure_output(text, 1000, SCREEN[1], SCREEN[0])
    code = parsing_response_to_pyautogui_code(found, SCREEN[1], SCREEN[0], input_swap=False, scale_factor=1)
    if code == "DONE":
        return (a.Done(),)
    parsed = get_format("pyautogui").parse(DOCSTRING.sub("", code), SCREEN)
    if parsed.errors and parsed.problem == "there is no call in the code":
        return ()
    assert not parsed.errors, parsed.problem
    return tuple(action for action in parsed.actions if not isinstance(action, a.Wait))


def expected(action: a.Action, text: str) -> tuple[str, tuple[a.Action, ...]]:
    """(the defect that changes an action or "", what the package makes of it)."""
    match action:
        case a.Scroll(x=int() as x, y=int() as y, dx=0):
            fractions = round(x / SCREEN[0]), round(y / SCREEN[1])
            return "the place of a scroll is a fraction of the screen", (a.Scroll(*fractions, 0, action.dy),)
        case a.Scroll():
            return "sideways scrolling gives no code", ()
        case a.Wait():
            return "wait gives a comment", ()
        case a.Press(keys=("enter",)) if "press(" in text:
            return "press holds the key down", (a.KeyDown("enter"),)
        case a.Type() if action.text.endswith("\n"):
            typed = a.Type(action.text.replace("'", "\\'"))
            return "a newline at the end is typed and pressed", (typed, a.Press(("enter",)))
        case a.Type() if "'" in action.text:
            return "a quote is typed with its backslash", (a.Type(action.text.replace("'", "\\'")),)
        case a.Done(answer=answer) if answer:
            return "the answer is dropped", (a.Done(),)
    return "", (action,)


@pytest.mark.thorough
def test_same_actions_as_the_published_package():
    seen: Counter[str] = Counter()
    for text in responses(COUNT, seed=20):
        ours = get_format("ui_tars").parse(text, SCREEN)
        assert not ours.errors, text
        cases = [expected(action, text) for action in ours.actions]
        want = tuple(action for _, actions in cases for action in actions)
        seen.update(defect for defect, _ in cases)
        if any(isinstance(action, a.Done) for action in ours.actions):
            want = (a.Done(),)  # it throws away what comes before
            seen["what comes before finished is thrown away"] += len(ours.actions) > 1
        assert published(text) == want, text
    assert seen[""] > COUNT / 2, "most are simply equal"
    assert all(seen.values())
    assert len(seen) == 8 + 1


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("click(start_box='<|box_start|>(100,200)<|box_end|>')", "could not convert string to float"),
        ("click(start_box='[90, 190, 110, 210]')", "could not convert string to float"),
        ('type(content="hello")', "Pattern not found"),
        ("type(content='a\nb')", "Pattern not found"),
        ("finished(content='it's done')", "can't parse"),
        ("type(content='Action: wait()')", "can't parse"),
    ],
)
def test_what_it_raises_on_is_read(call, says):
    text = f"Thought: x\nAction: {call}"
    with pytest.raises(ValueError, match=says):
        published(text)
    assert not get_format("ui_tars").parse(text, SCREEN).errors


def test_what_it_silently_changes_is_read():
    two = "Thought: x\nAction: click(start_box='(100,200)')\ntype(content='abc')"
    assert published(two) == (a.Type("click(start_box=\\'(100,200)\\')\nabc"),), "the whole block is typed"
    assert get_format("ui_tars").parse(two, SCREEN).actions == (a.Click(99, 198), a.Type("abc"))
    point = "Thought: x\nAction: type(content='see point=3')"
    assert published(point) == (a.Type("see start_box=3"),)
    assert get_format("ui_tars").parse(point, SCREEN).actions == (a.Type("see point=3"),)


def test_the_generator_writes_what_it_should():
    texts = responses(COUNT, seed=20)
    assert texts == responses(COUNT, seed=20)
    assert len(set(texts)) > 0.8 * COUNT
    kinds = {type(action) for text in texts for action in get_format("ui_tars").parse(text, SCREEN).actions}
    assert len(kinds) == 10


@pytest.mark.parametrize("factor", [28, 32])
def test_same_sizes_as_the_published_package(factor):
    for height in range(factor, 3000, 97):
        for width in range(factor, 4000, 131):
            if max(height, width) / min(height, width) <= 200:
                limits = {"min_pixels": 100 * factor**2, "max_pixels": 4000 * factor**2}
                assert smart_resize(height, width, factor=factor, **limits) == published_smart_resize(
                    height, width, factor=factor, **limits
                )


def test_doubao_s_spelling_is_read_by_the_package():
    doubao = get_format("ui_tars:doubao")
    for action in (a.Click(960, 540), a.Click(480, 270, "right"), a.Move(0, 0), a.Drag(((96, 54), (192, 108)))):
        text = doubao.format(action, SCREEN, "x")
        found = parse_action_to_structure_output(text, 1000, SCREEN[1], SCREEN[0], model_type="doubao")
        code = parsing_response_to_pyautogui_code(found, SCREEN[1], SCREEN[0], input_swap=False, scale_factor=1)
        assert get_format("pyautogui").parse(DOCSTRING.sub("", code), SCREEN).actions == (action,)
    with pytest.raises(InexpressibleError):
        doubao.format((), SCREEN)
