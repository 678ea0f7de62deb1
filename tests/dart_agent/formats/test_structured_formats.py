"""Golden tables of the formats besides UI-TARS: what each spelling means, and what each mistake is called."""

import json

import pytest

from dart_agent.formats import get_format
from dart_agent.models.coordinates import CoordinateSpace
from dart_gym.core import actions as a

SIZE = (1000, 800)
LEFT_CLICK = a.Click(50, 30)
DRAG_FROM_HERE = (a.MouseDown(), a.Move(5, 6), a.MouseUp())


def check(name, response, expected, size=SIZE):
    found = get_format(name).parse(response, size)
    if isinstance(expected, str):
        assert expected in found.problem, found
    else:
        assert not found.errors, found.problem
        assert found.actions == (expected if isinstance(expected, tuple) else (expected,))


# computer_13
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"action_type": "CLICK", "parameters": {"x": 50, "y": 30}}', LEFT_CLICK),
        ('{"action_type": "CLICK", "x": 50, "y": 30, "button": "left"}', LEFT_CLICK),
        ('{"action_type": "CLICK"}', a.Click()),
        (
            '{"action_type": "CLICK", "parameters": {"button": "right", "num_clicks": 2}}',
            a.Click(button="right", count=2),
        ),
        ('{"action_type": "RIGHT_CLICK", "parameters": {"x": 50, "y": 30}}', a.Click(50, 30, "right")),
        ('{"action_type": "DOUBLE_CLICK", "parameters": {"x": 50.4, "y": 29.6}}', a.Click(50, 30, count=2)),
        ('{"action_type": "MOVE_TO", "parameters": {"x": 5, "y": 6}}', a.Move(5, 6)),
        ('{"action_type": "MOUSE_DOWN"}', a.MouseDown()),
        ('{"action_type": "DRAG_TO", "parameters": {"x": 5, "y": 6}}', DRAG_FROM_HERE),
        (
            '{"action_type": "MOVE_TO", "x": 1, "y": 2}\n{"action_type": "DRAG_TO", "x": 5, "y": 6}',
            a.Drag(((1, 2), (5, 6))),
        ),
        ('{"action_type": "SCROLL", "parameters": {"dx": 0, "dy": -3}}', a.Scroll(dy=3)),
        ('{"action_type": "TYPING", "parameters": {"text": "a\\nb {}"}}', a.Type("a\nb {}")),
        ('{"action_type": "PRESS", "parameters": {"key": "Return"}}', a.Press(("enter",))),
        ('{"action_type": "HOTKEY", "parameters": {"keys": ["ctrl", "alt", "t"]}}', a.Press(("ctrl", "alt", "t"))),
        ("```\nDONE\n```", a.Done()),
        ("I cannot.\nFAIL", a.Fail()),
        ("WAIT", a.Wait(2.0)),
        ('{"action_type": "DONE"}', a.Done()),
        ('I see {braces}.\n```json\n{"action_type": "CLICK", "x": 50, "y": 30}\n```', LEFT_CLICK),
        ("nothing", "no action found"),
        ('{"action_type": "CLICK", "parameters": {"x": 50, "y": 30', "no valid JSON"),
        ('{"action_type": "CLICK", "parameters": {"x": 50}}', "x and y must be two numbers"),
        ('{"action_type": "CLICK", "parameters": {"x": "a", "y": 1}}', "two numbers"),
        ('{"action_type": "CLICK", "parameters": {"x": NaN, "y": 1}}', "two numbers"),
        ('{"action_type": "CLICK", "parameters": {"speed": 1}}', "no argument speed"),
        ('{"action_type": "CLICK", "parameters": {"button": "wheel"}}', "left, middle or right"),
        ('{"action_type": "CLICK", "parameters": {"num_clicks": 7}}', "num_clicks must be"),
        ('{"action_type": "JUMP"}', "unknown action_type 'JUMP'"),
        ('{"action_type": "PRESS", "parameters": {"key": "nosuch"}}', "unknown key"),
        ('{"action_type": "MOVE_TO"}', "MOVE_TO needs x and y"),
        ('{"action_type": 5}', "action_type must be text"),
    ],
)
def test_computer_13(text, expected):
    check("computer_13", text, expected)


def test_computer_13_takes_one_action_as_a_dict():
    check("computer_13", {"action_type": "CLICK", "parameters": {"x": 50, "y": 30}}, LEFT_CLICK)


# pyautogui, and the code of OpenCUA
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("pyautogui.click(50, 30)", LEFT_CLICK),
        ("pyautogui.click(x=50, y=30, clicks=1, interval=0.1, button='left')", LEFT_CLICK),
        ("pyautogui.click((50, 30))", LEFT_CLICK),
        (
            "import pyautogui\nimport time\n# the button\npyautogui.click(50, 30); time.sleep(1.5)",
            (LEFT_CLICK, a.Wait(1.5)),
        ),
        ("pyautogui.click(50.4, 29.6, button='right')", a.Click(50, 30, "right")),
        ("pyautogui.click()", a.Click()),
        ("pyautogui.doubleClick(50, 30)", a.Click(50, 30, count=2)),
        ("pyautogui.tripleClick(50, 30)", a.Click(50, 30, count=3)),
        ("pyautogui.rightClick(50, 30)", a.Click(50, 30, "right")),
        ("pyautogui.moveTo(5, 6, duration=0.5)", a.Move(5, 6)),
        ("pyautogui.moveTo(1, 2)\npyautogui.dragTo(5, 6, duration=1.0, button='left')", a.Drag(((1, 2), (5, 6)))),
        ("pyautogui.dragTo(5, 6)", DRAG_FROM_HERE),
        ("pyautogui.scroll(-5)", a.Scroll(dy=5)),
        ("pyautogui.scroll(3, x=50, y=30)", a.Scroll(50, 30, dy=-3)),
        ("pyautogui.hscroll(-2)", a.Scroll(dx=-2)),
        ("pyautogui.write('héllo', interval=0.1)", a.Type("héllo")),
        ("pyautogui.typewrite(message='''a\nb''')", a.Type("a\nb")),
        ("pyautogui.write(text='a')", a.Type("a")),
        ("pyautogui.typewrite(['a', 'enter'])", (a.Press(("a",)), a.Press(("enter",)))),
        ("pyautogui.press('enter', presses=2)", (a.Press(("enter",)), a.Press(("enter",)))),
        ("pyautogui.press(['up', 'down'])", (a.Press(("up",)), a.Press(("down",)))),
        ("pyautogui.press(key='esc')", a.Press(("esc",))),
        ("pyautogui.hotkey('ctrl', 'shift', 't')", a.Press(("ctrl", "shift", "t"))),
        ("pyautogui.hotkey(['ctrl', 'c'])", a.Press(("ctrl", "c"))),
        ("pyautogui.hotkey(keys=['ctrl', 'c'])", a.Press(("ctrl", "c"))),
        ("pyautogui.keyDown('shift')\npyautogui.keyUp('shift')", (a.KeyDown("shift"), a.KeyUp("shift"))),
        ("pyautogui.mouseDown(5, 6, button='right')", (a.Move(5, 6), a.MouseDown("right"))),
        ("import pyperclip\npyperclip.copy('你好')\ntime.sleep(0.5)\npyautogui.hotkey('ctrl', 'v')", a.Type("你好")),
        ("pyperclip.copy('x')", "types nothing"),
        ("pyperclip.copy('x')\npyautogui.click(1, 2)", "only pyautogui.hotkey('ctrl', 'v')"),
        ("x = 50\npyautogui.click(x, 30)", "Assign statement"),
        ("for i in range(3): pyautogui.click(1, 2)", "For statement"),
        ("pyautogui.click(50 + 1, 30)", "only literals"),
        ("pyautogui.click(*[1, 2])", "only literals"),
        ("pyautogui.click(**{'x': 1})", "** is not read"),
        ("pyautogui.write(f'{1}')", "only literals"),
        ("pyautogui.write('a' + 'b')", "only literals"),
        ("pyautogui.moveRel(5, 6)", "relative to the pointer"),
        ("pyautogui.click(1, 2, 3, 4, 5, 6)", "at most 5 arguments"),
        ("pyautogui.click(1, x=1)", "given twice"),
        ("pyautogui.click(50)", "two numbers"),
        ("pyautogui.click(None, None)", a.Click()),
        ("pyautogui.click(True, 1)", "two numbers"),
        ("pyautogui.click(1e400, 1)", "two numbers"),
        ("pyautogui.press('enter', presses=1000000)", "presses must be"),
        ("pyautogui.scroll(100000)", "clicks must be"),
        ("pyautogui.screenshot()", "is not known"),
        ("os.system('ls')", "is not known"),
        ("import os", "Import statement"),
        ("import pyautogui, os", "Import statement"),
        ("from pyautogui import click", "ImportFrom statement"),
        ("pyautogui.click.__call__(1, 2)", "not allowed"),
        ("(lambda: 0)()", "only plain calls"),
        ("pyautogui.click(", "no valid Python"),
        ("# nothing", "there is no call"),
    ],
)
def test_python_code(code, expected):
    check("pyautogui", f"I think.\n```python\n{code}\n```", expected)
    check("opencua:absolute", f"## Thought:\nI think.\n## Code:\n```python\n{code}\n```", expected)
    check("pyautogui", code, expected)


def test_words_and_all_blocks_count():
    two = "```python\npyautogui.click(1, 2)\n```\nThen:\n```\nDONE\n```"
    check("pyautogui", two, (a.Click(1, 2), a.Done()))
    check("pyautogui", "Here: ```python pyautogui.click(50, 30)```", LEFT_CLICK)
    check("pyautogui", "```python\npyautogui.write('```')\n```", a.Type("```"))
    check("pyautogui", "WAIT", a.Wait(2.0))


def test_errors_in_code_have_their_place():
    text = "Größe: 😀\n```python\npyautogui.click(1, 2)\nos.system('x')\npyautogui.press('nosuch')\n```"
    found = get_format("pyautogui").parse(text, SIZE)
    assert found.actions == (a.Click(1, 2),)
    assert [text[slice(*error.span)] for error in found.errors] == ["os.system('x')", "pyautogui.press('nosuch')"]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("computer.triple_click(x=50, y=30)", a.Click(50, 30, count=3)),
        ("computer.wait()", a.Wait(2.0)),
        ("computer.terminate(status='success')", a.Done()),
        ("computer.terminate(status='failure')", a.Fail()),
        ("computer.terminate()", "needs status"),
        ("computer.terminate(status='maybe')", "status='success' or 'failure'"),
    ],
)
def test_opencua(code, expected):
    check("opencua:absolute", f"# Step 1:\n## Thought:\nx\n## Action:\ny\n## Code:\n```code\n{code}\n```", expected)


def test_opencua_s_coordinates_and_sections():
    text = "## Thought:\nlook\n## Action:\nClick.\n\n## Code:\n```python\npyautogui.click(x={}, y={})\n```"
    found = get_format("opencua").parse(text.format(966, 546), (1920, 1080))
    assert found.actions == (a.Click(960, 540),)
    assert found.thought == "## Thought:\nlook\n## Action:\nClick."
    assert get_format("opencua:relative").parse(text.format(0.5, 0.25), (1920, 1080)).actions == (a.Click(960, 270),)
    assert get_format("opencua:relative1000").parse(text.format(500, 1000), (1920, 1080)).actions == (
        a.Click(960, 1079),
    )
    check("opencua", "## Thought: nothing to do", "no code block")


# OpenAI
def call(**action):
    return {"output": [{"type": "computer_call", "call_id": "c", "pending_safety_checks": [], "action": action}]}


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (call(type="click", x=50, y=30, button="left"), LEFT_CLICK),
        (call(type="click", x=50, y=30, button="wheel"), a.Click(50, 30, "middle")),
        (
            call(type="click", x=50, y=30, button="left", keys=["CTRL", "SHIFT"]),
            a.Click(50, 30, modifiers=("ctrl", "shift")),
        ),
        (call(type="double_click", x=50, y=30, keys=None), a.Click(50, 30, count=2)),
        (
            call(type="drag", path=[{"x": 1, "y": 2}, {"x": 3, "y": 4}, {"x": 5, "y": 6}]),
            a.Drag(((1, 2), (3, 4), (5, 6))),
        ),
        (
            call(type="drag", path=[{"x": 1, "y": 2}, {"x": 3, "y": 4}], keys=["SHIFT"]),
            (a.KeyDown("shift"), a.Drag(((1, 2), (3, 4))), a.KeyUp("shift")),
        ),
        (call(type="move", x=5, y=6), a.Move(5, 6)),
        (call(type="keypress", keys=["CTRL", "C"]), a.Press(("ctrl", "c"))),
        (call(type="keypress", keys=["ARROWLEFT"]), a.Press(("left",))),
        (call(type="scroll", x=5, y=6, scroll_x=0, scroll_y=500), a.Scroll(5, 6, 0, 5)),
        (call(type="scroll", x=5, y=6, scroll_x=-30, scroll_y=0), a.Scroll(5, 6, -1, 0)),
        (call(type="type", text="ab"), a.Type("ab")),
        (call(type="wait"), a.Wait(2.0)),
        (call(type="screenshot"), a.Wait(0.0)),
        (
            {"output": [{"type": "computer_call", "actions": [{"type": "move", "x": 5, "y": 6}, {"type": "wait"}]}]},
            (a.Move(5, 6), a.Wait(2.0)),
        ),
        ({"output": [{"type": "message", "content": [{"type": "output_text", "text": "42"}]}]}, a.Done("42")),
        (
            {"output": [{"type": "message", "content": [{"type": "output_text", "text": "[INFEASIBLE] no such app"}]}]},
            a.Fail("no such app"),
        ),
        ({"output": [{"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}]}, "refused: no"),
        ({"output": []}, "no computer_call and no message"),
        ({}, "output must be a list"),
        ({"output": [{"type": "function_call"}]}, "'function_call' is no computer_call"),
        (call(type="click", x=50, y=30, button="back"), "no button 'back'"),
        (call(type="click", x=50), "two numbers"),
        (call(type="fly"), "unknown action 'fly'"),
        (call(type="drag", path=[{"x": 1, "y": 2}]), "path must hold 2"),
        (call(type="keypress", keys=[]), "needs keys"),
        (call(type="click", x=5, y=6, speed=3), "no argument speed"),
        ({"output": [{"type": "computer_call"}]}, "actions must be a list of objects"),
        ({**call(type="wait"), "status": "incomplete"}, "cut off"),
        ("not json", "no valid JSON"),
        ("[]", "a JSON object"),
    ],
)
def test_openai(response, expected):
    check("openai", response, expected)
    if isinstance(response, dict):
        check("openai", json.dumps(response), expected)


def test_openai_thoughts_and_tools():
    reasoning = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I see"}]}
    message = {"type": "message", "content": [{"type": "output_text", "text": "Now this."}]}
    found = get_format("openai").parse({"output": [reasoning, message, *call(type="wait")["output"]]}, SIZE)
    assert (found.thought, found.actions) == ("I see\nNow this.", (a.Wait(2.0),))
    assert get_format("openai").tool_schema(SIZE) == {"type": "computer"}
    preview = get_format("openai:computer_use_preview").tool_schema(CoordinateSpace(SIZE, (500, 400)))
    assert preview == {
        "type": "computer_use_preview",
        "display_width": 500,
        "display_height": 400,
        "environment": "linux",
    }


# Anthropic
def use(**given):
    return {"content": [{"type": "tool_use", "id": "t", "name": "computer", "input": given}], "stop_reason": "tool_use"}


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (use(action="left_click", coordinate=[50, 30]), LEFT_CLICK),
        (use(action="left_click"), a.Click()),
        (
            use(action="left_click", coordinate=[50, 30], text="ctrl+shift"),
            a.Click(50, 30, modifiers=("ctrl", "shift")),
        ),
        (use(action="triple_click", coordinate=[50, 30]), a.Click(50, 30, count=3)),
        (use(action="key", text="ctrl+s"), a.Press(("ctrl", "s"))),
        (use(action="key", text="Return"), a.Press(("enter",))),
        (use(action="key", text="Page_Down"), a.Press(("pagedown",))),
        (use(action="key", text="super"), a.Press(("win",))),
        (use(action="key", text="KP_Add"), a.Press(("add",))),
        (use(action="key", text="Down", repeat=2), (a.Press(("down",)), a.Press(("down",)))),
        (use(action="hold_key", text="shift", duration=1.5), (a.KeyDown("shift"), a.Wait(1.5), a.KeyUp("shift"))),
        (use(action="type", text="ab"), a.Type("ab")),
        (use(action="mouse_move", coordinate=[5, 6]), a.Move(5, 6)),
        (use(action="left_mouse_down"), a.MouseDown()),
        (use(action="left_click_drag", start_coordinate=[1, 2], coordinate=[5, 6]), a.Drag(((1, 2), (5, 6)))),
        (use(action="left_click_drag", coordinate=[5, 6]), DRAG_FROM_HERE),
        (use(action="scroll", coordinate=[5, 6], scroll_direction="down", scroll_amount=3), a.Scroll(5, 6, 0, 3)),
        (
            use(action="scroll", coordinate=[5, 6], scroll_direction="up", scroll_amount=3, text="ctrl"),
            (a.KeyDown("ctrl"), a.Scroll(5, 6, 0, -3), a.KeyUp("ctrl")),
        ),
        (use(action="wait", duration=2), a.Wait(2)),
        (use(action="screenshot"), a.Wait(0.0)),
        ({"content": [{"type": "text", "text": "done"}], "stop_reason": "end_turn"}, a.Done("done")),
        ({"content": [{"type": "text", "text": "[INFEASIBLE]"}]}, a.Fail()),
        ({"content": []}, "no tool_use and no text"),
        ({"content": [], "stop_reason": "max_tokens"}, "raise max_tokens"),
        ({"content": [{"type": "text", "text": "no"}], "stop_reason": "refusal"}, "the model refused"),
        ({"content": [{"type": "tool_use", "name": "bash", "input": {}}]}, "'bash' is not the tool computer"),
        (use(action="zoom", region=[0, 0, 5, 5]), "not offered"),
        (use(action="cursor_position"), "not offered"),
        (use(action="left_click", coordinate=[50]), "two numbers"),
        (use(action="left_click", coordinate="50, 30"), "two numbers"),
        (use(action="left_click", coordinate=[50, "x"]), "two numbers"),
        (use(action="scroll", scroll_direction="in", scroll_amount=1), "scroll_direction must be"),
        (use(action="scroll", scroll_direction="up", scroll_amount=10**30), "scroll_amount must be"),
        (use(action="key", text="Retrun"), "did you mean"),
        (use(action="key", text="a", repeat=1000), "repeat must be"),
        (use(), "needs an action"),
    ],
)
def test_anthropic(response, expected):
    check("anthropic:2025-11", response, expected)
    check("anthropic:2025-01", json.dumps(response), expected)


def test_anthropic_versions_scaling_and_schema():
    check("anthropic:2024-10", use(action="left_click", coordinate=[50, 30]), LEFT_CLICK)
    for action in ("wait", "scroll", "triple_click", "hold_key", "left_mouse_down"):
        check("anthropic:2024-10", use(action=action), f"{action} is not an action of computer_20241022")
    small = CoordinateSpace((1920, 1080), (1280, 720))
    check("anthropic", use(action="left_click", coordinate=[640, 360]), a.Click(960, 540), small)
    schema = get_format("anthropic:2025-11").tool_schema(small)
    assert schema == {
        "type": "computer_20251124",
        "name": "computer",
        "display_width_px": 1280,
        "display_height_px": 720,
    }
    thinking = {"type": "thinking", "thinking": "hm"}
    text = {"type": "text", "text": "I click."}
    found = get_format("anthropic").parse(
        {"content": [thinking, text, *use(action="wait", duration=1)["content"]]}, SIZE
    )
    assert found.thought == "hm\nI click."


# Qwen
def tool_call(**arguments):
    return f"<tool_call>\n{json.dumps({'name': 'computer_use', 'arguments': arguments})}\n</tool_call>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (tool_call(action="left_click", coordinate=[500, 999]), a.Click(501, 799)),
        (tool_call(action="triple_click", coordinate=[0, 0]), a.Click(0, 0, count=3)),
        (tool_call(action="left_click"), a.Click()),
        (tool_call(action="mouse_move", coordinate=[0, 0]), a.Move(0, 0)),
        (tool_call(action="left_click_drag", coordinate=[999, 0]), (a.MouseDown(), a.Move(999, 0), a.MouseUp())),
        (
            tool_call(action="mouse_move", coordinate=[0, 0])
            + "\n"
            + tool_call(action="left_click_drag", coordinate=[999, 0]),
            a.Drag(((0, 0), (999, 0))),
        ),
        (tool_call(action="key", keys=["ctrl", "c"]), a.Press(("ctrl", "c"))),
        (tool_call(action="type", text="ab"), a.Type("ab")),
        (tool_call(action="scroll", pixels=-500), a.Scroll(dy=5)),
        (tool_call(action="scroll", pixels=-5, coordinate=[0, 0]), a.Scroll(0, 0, dy=1)),
        (tool_call(action="hscroll", pixels=200), a.Scroll(dx=2)),
        (tool_call(action="wait", time=1.5), a.Wait(1.5)),
        (tool_call(action="terminate", status="success"), a.Done()),
        (tool_call(action="terminate", status="failure"), a.Fail()),
        (tool_call(action="answer", text="42"), a.Done("42")),
        (tool_call(action="terminate"), "needs status"),
        (tool_call(action="fly"), "unknown action 'fly'"),
        (tool_call(coordinate=[1, 2]), "needs an action"),
        ('<tool_call>\n{"name": "computer_use", "arguments": {"action": "left_cl', "no valid JSON"),
        ('<tool_call>{"name": "search", "arguments": {}}</tool_call>', "a call is"),
        ("I would click.", "no <tool_call>"),
    ],
)
def test_qwen_3(text, expected):
    check("qwen", text, expected)


def test_qwen_versions_and_thought():
    text = f"<think>I see it.</think>\nNow I click.\n{tool_call(action='left_click', coordinate=[966, 546])}"
    found = get_format("qwen:2.5").parse(text, (1920, 1080))
    assert found.actions == (a.Click(960, 540),)
    assert found.thought == "I see it.\nNow I click."
    assert '"name": "computer_use"' in get_format("qwen").describe()
    assert "1932x1092" in get_format("qwen:2.5").tool_schema((1920, 1080))["function"]["description"]
    assert "1008" not in get_format("qwen:2.5").describe()  # the size of no screenshot


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("computer_13", '{"action_type": "WAIT", "action_type": "DONE"}'),
        ("computer_13", '{"action_type": "CLICK", "parameters": {"x": 1, "x": 2, "y": 3}}'),
        ("qwen:3", '<tool_call>{"name": "computer_use", "arguments": {"action": "wait", "action": "key"}}</tool_call>'),
        ("qwen:3", '{"name": "computer_use", "arguments": {"action": "wait", "time": 1, "time": 2}}'),
        ("ui_tars", "Action: click(start_box='(1,2)', start_box='(3,4)')"),
        ("agent_s", "```python\nagent.wait(1, time=2)\n```"),
        ("agent_s", "```python\nagent.wait(time=1, time=2)\n```"),
        ("pyautogui", "```python\npyautogui.click(x=5, x=7, y=1)\n```"),
    ],
)  # fmt: skip
def test_what_is_given_twice_is_an_error_and_not_the_last_one(name, text):
    assert get_format(name).parse(text, (1920, 1080)).errors


def test_a_fence_may_have_a_blank_before_its_language():
    assert get_format("agent_s").parse("``` python\nagent.done()\n```", (1920, 1080)).actions == (a.Done(),)
