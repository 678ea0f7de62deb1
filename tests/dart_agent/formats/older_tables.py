"""Golden tables of the formats of 2024 and 2025, as `test_golden` has those of 2026: each line has a public source."""

import json
from typing import Any

from dart_agent.formats.grammar.element_actions import ClickOn, DragOn, ScrollOn, TypeInto
from dart_gym.core import actions as a

Line = tuple[object, Any]
ENTER = a.Press(("enter",))
WAYS = (("up", 0, -5), ("down", 0, 5), ("left", -5, 0), ("right", 5, 0))
XDOTOOL = (
    *(("Return", "enter"), ("Escape", "esc"), ("Page_Down", "pagedown"), ("BackSpace", "backspace"), ("Tab", "tab")),
    *(("Up", "up"), ("Down", "down"), ("super", "win"), ("F5", "f5"), ("Delete", "delete"), ("Home", "home")),
)


def code(*lines: str) -> str:
    return "I go on.\n```python\n" + "\n".join(lines) + "\n```"


def opencua(*lines: str) -> str:
    written = "\n".join(lines)
    return f"# Step 1:\n## Thought:\nI see it.\n\n## Action:\nClick.\n\n## Code:\n```python\n{written}\n```"


def item(kind: str, **parameters: object) -> str:
    return json.dumps({"action_type": kind, "parameters": parameters})


def ui(*calls: str) -> str:
    return "Thought: I go on.\nAction: " + "\n\n".join(calls)


def boxed(x: int, y: int) -> str:
    return f"<|box_start|>({x},{y})<|box_end|>"


def point(x: int, y: int) -> str:
    return f"<point>{x} {y}</point>"


def use(action: str, **given: object) -> dict[str, object]:
    block = {"type": "tool_use", "id": "toolu_1", "name": "computer", "input": {"action": action, **given}}
    return {"content": [{"type": "text", "text": "I go on."}, block], "stop_reason": "tool_use"}


def preview(**action: object) -> dict[str, object]:
    call = {"type": "computer_call", "id": "cu_1", "call_id": "c", "pending_safety_checks": [], "status": "completed"}
    return {"output": [{"type": "reasoning", "id": "rs_1", "summary": []}, {**call, "action": action}]}


def said(text: str) -> dict[str, object]:
    return {"output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}]}


def qwen25(**arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'computer_use', 'arguments': arguments})}\n</tool_call>"


# OSWorld's desktop_env/actions.py (ACTION_SPACE, KEYBOARD_KEYS) and controllers/python.py (execute_action: parameters
# may stand beside action_type), as in karakuri-ai/OSWorld-JP@d3f5e84; mm_agents/prompts.py for the bare words.
COMPUTER_13: list[Line] = [
    (item("MOVE_TO", x=5, y=3), a.Move(5, 3)),
    (item("MOVE_TO", x=5.0, y=3.0), a.Move(5, 3)),
    (item("CLICK"), a.Click()),
    (item("CLICK", button="left", x=5, y=3), a.Click(5, 3)),
    (item("CLICK", button="right", x=5, y=3, num_clicks=1), a.Click(5, 3, "right")),
    (item("CLICK", button="middle"), a.Click(button="middle")),
    (item("CLICK", button="left", num_clicks=2), a.Click(count=2)),
    (item("CLICK", x=5, y=3, num_clicks=3), a.Click(5, 3, count=3)),
    (item("CLICK", x=5, y=3), a.Click(5, 3)),
    ('{"action_type": "CLICK", "x": 5, "y": 3}', a.Click(5, 3)),
    ('```json\n{"action_type": "CLICK"}\n```', a.Click()),
    (item("MOUSE_DOWN"), a.MouseDown()),
    (item("MOUSE_DOWN", button="right"), a.MouseDown("right")),
    (item("MOUSE_UP"), a.MouseUp()),
    (item("MOUSE_UP", button="middle"), a.MouseUp("middle")),
    (item("RIGHT_CLICK", x=5, y=3), a.Click(5, 3, "right")),
    (item("RIGHT_CLICK"), a.Click(button="right")),
    (item("DOUBLE_CLICK", x=5, y=3), a.Click(5, 3, count=2)),
    (item("DOUBLE_CLICK"), a.Click(count=2)),
    (item("DRAG_TO", x=5, y=3), (a.MouseDown(), a.Move(5, 3), a.MouseUp())),
    (item("MOVE_TO", x=1, y=2) + "\n" + item("DRAG_TO", x=5, y=3), a.Drag(((1, 2), (5, 3)))),
    (item("SCROLL", dx=0, dy=-5), a.Scroll(dy=5)),
    (item("SCROLL", dx=0, dy=5), a.Scroll(dy=-5)),
    (item("SCROLL", dx=3, dy=0), a.Scroll(dx=3)),
    (item("TYPING", text="hello"), a.Type("hello")),
    (item("TYPING", text="it's \\ 你好\n"), a.Type("it's \\ 你好\n")),
    (item("PRESS", key="enter"), ENTER),
    (item("PRESS", key="pagedown"), a.Press(("pagedown",))),
    (item("PRESS", key="\t"), a.Press(("tab",))),
    (item("PRESS", key=" "), a.Press(("space",))),
    (item("PRESS", key="ENTER"), ENTER),
    (item("KEY_DOWN", key="shift"), a.KeyDown("shift")),
    (item("KEY_UP", key="shift"), a.KeyUp("shift")),
    (item("HOTKEY", keys=["ctrl", "alt", "t"]), a.Press(("ctrl", "alt", "t"))),
    ("```\nWAIT\n```", a.Wait(2.0)),
    ('{"action_type": "WAIT"}', a.Wait(2.0)),
    ("```DONE```", a.Done()),
    ("FAIL", a.Fail()),
]
# The same execute_action and prompts.py: the calls that OSWorld makes of actions, and that its agents are asked for.
PYAUTOGUI: list[Line] = [
    (code("import pyautogui", "pyautogui.click(5, 3)"), a.Click(5, 3)),
    (code("pyautogui.click()"), a.Click()),
    (code("pyautogui.click(button='right', x=5, y=3)"), a.Click(5, 3, "right")),
    (code("pyautogui.click(button='left', x=5, y=3, clicks=2)"), a.Click(5, 3, count=2)),
    (code("pyautogui.click(button='middle')"), a.Click(button="middle")),
    (code("pyautogui.click(button='left', clicks=3)"), a.Click(count=3)),
    (code("pyautogui.click(5, 3, button='left')"), a.Click(5, 3)),
    (code("pyautogui.rightClick()"), a.Click(button="right")),
    (code("pyautogui.rightClick(x=5, y=3)"), a.Click(5, 3, "right")),
    (code("pyautogui.doubleClick(x=5, y=3)"), a.Click(5, 3, count=2)),
    (code("pyautogui.doubleClick(5, 3, button='left')"), a.Click(5, 3, count=2)),
    (code("pyautogui.moveTo(5, 3)"), a.Move(5, 3)),
    (code("pyautogui.moveTo(5, 3, 0.5)"), a.Move(5, 3)),
    (code("pyautogui.mouseDown(button='left')"), a.MouseDown()),
    (code("pyautogui.mouseUp()"), a.MouseUp()),
    (
        code("pyautogui.moveTo(1, 2)", "pyautogui.dragTo(5, 3, duration=1.0, button='left', mouseDownUp=True)"),
        a.Drag(((1, 2), (5, 3))),
    ),
    (code("pyautogui.hscroll(3)"), a.Scroll(dx=3)),
    (code("pyautogui.vscroll(-5)"), a.Scroll(dy=5)),
    (code("pyautogui.scroll(5, x=5, y=3)"), a.Scroll(5, 3, dy=-5)),
    (code("pyperclip.copy('你好')", "pyautogui.hotkey('ctrl', 'v')"), a.Type("你好")),
    (code("pyautogui.typewrite('hello')"), a.Type("hello")),
    (code("pyautogui.write('hello', interval=0.1)", "time.sleep(0.5);"), (a.Type("hello"), a.Wait(0.5))),
    (code("pyautogui.press('enter')"), ENTER),
    (code("pyautogui.keyDown('ctrl')"), a.KeyDown("ctrl")),
    (code("pyautogui.keyUp('ctrl')"), a.KeyUp("ctrl")),
    (code("pyautogui.hotkey('ctrl', 'shift', 't')"), a.Press(("ctrl", "shift", "t"))),
    (code("import time; time.sleep(1.5)"), a.Wait(1.5)),
    ("```WAIT```", a.Wait(2.0)),
    ("```FAIL```", a.Fail()),
    ("```DONE```", a.Done()),
]
# xlang-ai/OpenCUA@1d70f20 model/README.md, evaluation/agentnetbench/agent/opencua.py (system prompts and parser),
# data/cot-generate (steps); the OSWorld agent's computer.wait and terminate(answer=).
OPENCUA: list[Line] = [
    (opencua("pyautogui.click(x=1443, y=343)"), a.Click(1443, 343)),
    ("```python\npyautogui.click(x=960, y=324)\n```", a.Click(960, 324)),
    (opencua("pyautogui.click(x=5, y=3, clicks=1, button='left')"), a.Click(5, 3)),
    (opencua("pyautogui.click(x=5.0, y=3.0)"), a.Click(5, 3)),
    (opencua("pyautogui.rightClick(x=5, y=3)"), a.Click(5, 3, "right")),
    (opencua("pyautogui.doubleClick(x=5, y=3)"), a.Click(5, 3, count=2)),
    (opencua("pyautogui.middleClick(x=5, y=3)"), a.Click(5, 3, "middle")),
    (opencua("computer.triple_click(x=5, y=3)"), a.Click(5, 3, count=3)),
    (opencua("computer.tripleClick(x=5, y=3)"), a.Click(5, 3, count=3)),
    (opencua("pyautogui.moveTo(x=5, y=3)"), a.Move(5, 3)),
    (opencua("pyautogui.moveTo(x=1, y=2)", "pyautogui.dragTo(x=5, y=3, button='left')"), a.Drag(((1, 2), (5, 3)))),
    (opencua("pyautogui.write(message='george orwell')"), a.Type("george orwell")),
    (opencua("pyautogui.write(message='CardPhotoForm')"), a.Type("CardPhotoForm")),
    (opencua("pyautogui.write('hello')"), a.Type("hello")),
    (opencua("pyautogui.press('enter')"), ENTER),
    (opencua("pyautogui.press(keys=['enter'])"), ENTER),
    (opencua("pyautogui.press(['down', 'down'])"), (a.Press(("down",)), a.Press(("down",)))),
    (opencua("pyautogui.press('backspace', presses=2)"), (a.Press(("backspace",)), a.Press(("backspace",)))),
    (opencua("pyautogui.hotkey('ctrl', 'v')"), a.Press(("ctrl", "v"))),
    (opencua("pyautogui.hotkey(keys=['ctrl', 'c'])"), a.Press(("ctrl", "c"))),
    (opencua("pyautogui.hotkey(['alt', 'tab'])"), a.Press(("alt", "tab"))),
    (opencua("pyautogui.scroll(-5)"), a.Scroll(dy=5)),
    (opencua("pyautogui.scroll(10)"), a.Scroll(dy=-10)),
    (opencua("pyautogui.hscroll(-2)"), a.Scroll(dx=-2)),
    (opencua("pyautogui.sleep(2)"), a.Wait(2)),
    (opencua("computer.wait()"), a.Wait(2.0)),
    (opencua("computer.terminate(status='success')"), a.Done()),
    (opencua("computer.terminate(status='failure')"), a.Fail()),
    (opencua("computer.terminate(status='success', answer='42')"), a.Done("42")),
    (opencua("computer.terminate(status='success')").replace("```python", "```code"), a.Done()),
]
# The same README: OpenCUA-Qwen2-7B's fractions of the screen; and 0 to 1000, as EvoCUA's S1 has them (evocua_agent.py).
FRACTIONS: list[Line] = [
    (opencua("pyautogui.click(x=0.5, y=0.3)"), a.Click(500, 300)),
    (opencua("pyautogui.click(x=1.0, y=1.0)"), a.Click(999, 999)),
    (opencua("pyautogui.moveTo(x=0.001, y=0.002)", "pyautogui.dragTo(x=0.5, y=0.3)"), a.Drag(((1, 2), (500, 300)))),
    (opencua("computer.triple_click(x=0.5, y=0.3)"), a.Click(500, 300, count=3)),
    (opencua("pyautogui.rightClick(x=0.5, y=0.3)"), a.Click(500, 300, "right")),
    (opencua("pyautogui.doubleClick(x=0.5, y=0.3)"), a.Click(500, 300, count=2)),
    (opencua("pyautogui.moveTo(x=0.0, y=0.0)"), a.Move(0, 0)),
    *(line for line in OPENCUA if not {"x=", "y="} & {word[:2] for word in str(line[0]).replace("(", " ").split()}),
]
THOUSANDTHS: list[Line] = [line for line in OPENCUA if "1443" not in str(line[0])]
SCREEN = "The menu button at the top right of the window"
# simular-ai/Agent-S@5caa76c gui_agents/s3/agents/grounding.py (the methods marked @agent_action, with their defaults)
# and memory/procedural_memory.py (the call that its prompt shows).
AGENT_S: list[Line] = [
    (code(f'agent.click("{SCREEN}", 1, "left")'), ClickOn(SCREEN)),
    (code("agent.click('the file')"), ClickOn("the file")),
    (code("agent.click('the file', 2)"), ClickOn("the file", 2)),
    (code("agent.click('the file', num_clicks=3)"), ClickOn("the file", 3)),
    (code("agent.click('the file', 1, 'right')"), ClickOn("the file", 1, "right")),
    (code("agent.click('the file', button_type='middle')"), ClickOn("the file", 1, "middle")),
    (code("agent.click('the file', 1, 'left', ['ctrl'])"), ClickOn("the file", modifiers=("ctrl",))),
    (
        code("agent.click(element_description='the file', hold_keys=['shift'])"),
        ClickOn("the file", modifiers=("shift",)),
    ),
    (code("agent.type('the field', 'hello')"), TypeInto("the field", "hello")),
    (code("agent.type('the field', text='hello', overwrite=True)"), TypeInto("the field", "hello", True)),
    (code("agent.type('the field', 'hello', False, True)"), TypeInto("the field", "hello", False, True)),
    (code("agent.type(element_description='f', text='你好', enter=True)"), TypeInto("f", "你好", False, True)),
    (code("agent.type(text='hello')"), a.Type("hello")),
    (code("agent.type(element_description=None, text='hello')"), a.Type("hello")),
    (code("agent.type(text='hello', enter=True)"), (a.Type("hello"), ENTER)),
    (
        code("agent.type(text='x', overwrite=True)"),
        (a.Press(("ctrl", "a")), a.Press(("backspace",)), a.Type("x")),
    ),
    (code("agent.drag_and_drop('the file', 'the bin')"), DragOn("the file", "the bin")),
    (code("agent.drag_and_drop('the file', 'the bin', ['ctrl'])"), DragOn("the file", "the bin", ("ctrl",))),
    (code("agent.scroll('the list', -5)"), ScrollOn("the list", dy=5)),
    (code("agent.scroll('the list', 3)"), ScrollOn("the list", dy=-3)),
    (code("agent.scroll('the table', 4, shift=True)"), ScrollOn("the table", dx=4)),
    (code("agent.hotkey(['ctrl', 'c'])"), a.Press(("ctrl", "c"))),
    (code("agent.hotkey(keys=['alt', 'f4'])"), a.Press(("alt", "f4"))),
    (
        code("agent.hold_and_press(['shift'], ['down', 'down'])"),
        (a.KeyDown("shift"), a.Press(("down",)), a.Press(("down",)), a.KeyUp("shift")),
    ),
    (code("agent.open('gimp')"), (a.Press(("win",)), a.Wait(0.5), a.Type("gimp"), a.Wait(1.0), ENTER)),
    (code("agent.wait(1.5)"), a.Wait(1.5)),
    (code("agent.wait(time=2)"), a.Wait(2)),
    (code("agent.done()"), a.Done()),
    (code("agent.fail()"), a.Fail()),
]
# The package openai 3.54.0, types/responses/response_computer_tool_call.py: one `action` in a call.
AT = {"x": 5, "y": 3}
PREVIEW: list[Line] = [
    *(
        (preview(type="click", **AT, button=button), a.Click(5, 3, means))
        for button, means in (("left", "left"), ("right", "right"), ("wheel", "middle"))
    ),
    (preview(type="click", **AT, button="left", keys=["CTRL"]), a.Click(5, 3, modifiers=("ctrl",))),
    (preview(type="click", **AT, button="left", keys=None), a.Click(5, 3)),
    (preview(type="double_click", **AT), a.Click(5, 3, count=2)),
    (preview(type="double_click", **AT, keys=["ALT"]), a.Click(5, 3, count=2, modifiers=("alt",))),
    (preview(type="drag", path=[{"x": 1, "y": 2}, AT]), a.Drag(((1, 2), (5, 3)))),
    (preview(type="drag", path=[{"x": 100, "y": 200}, {"x": 200, "y": 300}]), a.Drag(((100, 200), (200, 300)))),
    (
        preview(type="drag", path=[{"x": 1, "y": 2}, AT], keys=["SHIFT"]),
        (a.KeyDown("shift"), a.Drag(((1, 2), (5, 3))), a.KeyUp("shift")),
    ),
    (preview(type="keypress", keys=["CTRL", "A"]), a.Press(("ctrl", "a"))),
    *(
        (preview(type="keypress", keys=[name]), a.Press((key,)))
        for name, key in (
            *(("ENTER", "enter"), ("BACKSPACE", "backspace"), ("ESC", "esc"), ("SPACE", "space"), ("TAB", "tab")),
            *(("ARROWDOWN", "down"), ("ARROWLEFT", "left"), ("PAGEUP", "pageup"), ("a", "a"), ("F5", "f5")),
        )
    ),
    (preview(type="move", **AT), a.Move(5, 3)),
    (preview(type="move", **AT, keys=["CTRL"]), (a.KeyDown("ctrl"), a.Move(5, 3), a.KeyUp("ctrl"))),
    (preview(type="screenshot"), a.Wait(0.0)),
    (preview(type="scroll", **AT, scroll_x=0, scroll_y=300), a.Scroll(5, 3, 0, 3)),
    (preview(type="scroll", **AT, scroll_x=0, scroll_y=-100), a.Scroll(5, 3, 0, -1)),
    (preview(type="scroll", **AT, scroll_x=200, scroll_y=0), a.Scroll(5, 3, 2, 0)),
    (
        preview(type="scroll", **AT, scroll_x=0, scroll_y=100, keys=["CTRL"]),
        (a.KeyDown("ctrl"), a.Scroll(5, 3, 0, 1), a.KeyUp("ctrl")),
    ),
    (preview(type="type", text="hello"), a.Type("hello")),
    (preview(type="wait"), a.Wait(2.0)),
    (said("42"), a.Done("42")),
    (said("[INFEASIBLE] no such program"), a.Fail("no such program")),
]
# anthropics/anthropic-quickstarts@44c2b5c computer-use-demo/computer_use_demo/tools/computer.py (Action_20241022 and
# Action_20250124 with what they take; `xdotool key` for names of keys) and tests/tools/computer_test.py.
CLAUDE_2024: list[Line] = [
    (use("mouse_move", coordinate=[100, 200]), a.Move(100, 200)),
    (use("mouse_move", coordinate=[0, 0]), a.Move(0, 0)),
    (use("left_click"), a.Click()),
    (use("left_click", coordinate=[5, 3]), a.Click(5, 3)),
    (use("right_click"), a.Click(button="right")),
    (use("middle_click"), a.Click(button="middle")),
    (use("double_click"), a.Click(count=2)),
    (use("double_click", coordinate=None, text=None), a.Click(count=2)),
    (use("left_click_drag", coordinate=[5, 3]), (a.MouseDown(), a.Move(5, 3), a.MouseUp())),
    (
        {
            "content": [
                *use("mouse_move", coordinate=[1, 2])["content"],
                *use("left_click_drag", coordinate=[5, 3])["content"],
            ]
        },  # type: ignore[misc]  # noqa: E501
        a.Drag(((1, 2), (5, 3))),
    ),
    (use("type", text="Hello, World!"), a.Type("Hello, World!")),
    (use("type", text="two\nlines"), a.Type("two\nlines")),
    (use("type", text="-- 'quoted'"), a.Type("-- 'quoted'")),
    (use("screenshot"), a.Wait(0.0)),
    (use("key", text="ctrl+s"), a.Press(("ctrl", "s"))),
    (use("key", text="ctrl+shift+t"), a.Press(("ctrl", "shift", "t"))),
    (use("key", text="alt+Tab"), a.Press(("alt", "tab"))),
    *((use("key", text=name), a.Press((key,))) for name, key in XDOTOOL),
    ({"content": [{"type": "text", "text": "42"}], "stop_reason": "end_turn"}, a.Done("42")),
    ({"content": [{"type": "text", "text": "[INFEASIBLE] no"}], "stop_reason": "end_turn"}, a.Fail("no")),
]
CLAUDE_2025: list[Line] = [
    *CLAUDE_2024,
    (use("left_mouse_down"), a.MouseDown()),
    (use("left_mouse_up"), a.MouseUp()),
    (use("triple_click", coordinate=[5, 3]), a.Click(5, 3, count=3)),
    (use("left_click", coordinate=[5, 3], key="ctrl"), a.Click(5, 3, modifiers=("ctrl",))),
    (use("double_click", coordinate=[5, 3], key="shift"), a.Click(5, 3, count=2, modifiers=("shift",))),
    (use("hold_key", text="shift", duration=2), (a.KeyDown("shift"), a.Wait(2), a.KeyUp("shift"))),
    (use("wait", duration=2), a.Wait(2)),
    *(
        (use("scroll", coordinate=[5, 3], scroll_direction=way, scroll_amount=5), a.Scroll(5, 3, dx, dy))
        for way, dx, dy in WAYS
    ),
    (use("scroll", scroll_direction="down", scroll_amount=5), a.Scroll(dy=5)),
    (
        use("scroll", coordinate=[5, 3], scroll_direction="down", scroll_amount=5, text="ctrl"),
        (a.KeyDown("ctrl"), a.Scroll(5, 3, 0, 5), a.KeyUp("ctrl")),
    ),
]
# QwenLM/Qwen2.5-VL's cookbooks/utils/agent_function_call.py (class ComputerUse), as QwenLM/Qwen3-VL's history has it.
QWEN25: list[Line] = [
    (qwen25(action="key", keys=["ctrl", "c"]), a.Press(("ctrl", "c"))),
    (qwen25(action="key", keys=["enter"]), ENTER),
    (qwen25(action="key", keys=["alt", "f4"]), a.Press(("alt", "f4"))),
    (qwen25(action="key", keys=["page_down"]), a.Press(("pagedown",))),
    (qwen25(action="key", keys=["esc"]), a.Press(("esc",))),
    (qwen25(action="type", text="hello"), a.Type("hello")),
    (qwen25(action="type", text="你好"), a.Type("你好")),
    (qwen25(action="type", text="two\nlines"), a.Type("two\nlines")),
    (qwen25(action="mouse_move", coordinate=[5, 3]), a.Move(5, 3)),
    (qwen25(action="left_click", coordinate=[5, 3]), a.Click(5, 3)),
    (qwen25(action="left_click", coordinate=[1399, 1399]), a.Click(1399, 1399)),
    (qwen25(action="left_click"), a.Click()),
    (qwen25(action="right_click", coordinate=[5, 3]), a.Click(5, 3, "right")),
    (qwen25(action="middle_click", coordinate=[5, 3]), a.Click(5, 3, "middle")),
    (qwen25(action="double_click", coordinate=[5, 3]), a.Click(5, 3, count=2)),
    (qwen25(action="triple_click", coordinate=[5, 3]), a.Click(5, 3, count=3)),
    (qwen25(action="left_click_drag", coordinate=[5, 3]), (a.MouseDown(), a.Move(5, 3), a.MouseUp())),
    (
        qwen25(action="mouse_move", coordinate=[1, 2]) + qwen25(action="left_click_drag", coordinate=[5, 3]),
        a.Drag(((1, 2), (5, 3))),
    ),
    (qwen25(action="scroll", pixels=-500), a.Scroll(dy=5)),
    (qwen25(action="scroll", pixels=300), a.Scroll(dy=-3)),
    (qwen25(action="hscroll", pixels=200), a.Scroll(dx=2)),
    (qwen25(action="wait", time=2), a.Wait(2)),
    (qwen25(action="wait", time=0.5), a.Wait(0.5)),
    (qwen25(action="terminate", status="success"), a.Done()),
    (qwen25(action="terminate", status="failure"), a.Fail()),
    (qwen25(action="answer", text="42"), a.Done("42")),
]


def ui_tars(place: Any, start: str = "start_box", end: str = "end_box") -> list[Line]:
    """The calls of UI-TARS's prompts with places as a dialect writes them."""
    return [
        (ui(f"click({start}='{place(5, 3)}')"), a.Click(5, 3)),
        (f"Action: click({start}='{place(495, 30)}')", a.Click(495, 30)),
        (f"Action: click({start}='{place(66, 851)}')", a.Click(66, 851)),
        (ui(f"left_single({start}='{place(5, 3)}')"), a.Click(5, 3)),
        (ui(f"left_double({start}='{place(5, 3)}')"), a.Click(5, 3, count=2)),
        (ui(f"right_single({start}='{place(5, 3)}')"), a.Click(5, 3, "right")),
        (ui(f"hover({start}='{place(5, 3)}')"), a.Move(5, 3)),
        (ui(f"select({start}='{place(5, 3)}')"), a.Click(5, 3)),
        (ui("hotkey(key='ctrl c')"), a.Press(("ctrl", "c"))),
        (ui("hotkey(key='ctrl shift t')"), a.Press(("ctrl", "shift", "t"))),
        (ui("hotkey(key='arrowleft')"), a.Press(("left",))),
        (ui("hotkey(key='enter')"), ENTER),
        (ui("keydown(key='shift')"), a.KeyDown("shift")),
        (ui("keyup(key='shift')"), a.KeyUp("shift")),
        (ui("release(key='arrowup')"), a.KeyUp("up")),
        (ui("type(content='hello')"), a.Type("hello")),
        (ui("type(content='hello\\n')"), a.Type("hello\n")),
        (ui(f"type(content='hello', {start}='{place(5, 3)}')"), (a.Click(5, 3), a.Type("hello"))),
        (ui("type(content='it\\'s \\\"so\\\"')"), a.Type('it\'s "so"')),
        *((ui(f"scroll({start}='{place(5, 3)}', direction='{way}')"), a.Scroll(5, 3, dx, dy)) for way, dx, dy in WAYS),
        (ui("scroll(direction='down')"), a.Scroll(dy=5)),
        (ui("wait()"), a.Wait(5.0)),
        (ui("finished()"), a.Done()),
        (ui("finished(content='xxx')"), a.Done("xxx")),
        (ui("call_user()"), a.Fail()),
        (ui(f"click({start}='{place(5, 3)}')", "type(content='x')"), (a.Click(5, 3), a.Type("x"))),
        (f"Reflection: No.\nAction_Summary: I click.\nAction: click({start}='{place(5, 3)}')", a.Click(5, 3)),
        (
            ui(f"drag({start.replace('point', 'start_point')}='{place(1, 2)}', {end}='{place(5, 3)}')"),
            a.Drag(((1, 2), (5, 3))),
        ),
    ]


# bytedance/UI-TARS@582f3a7 README_v1.md, data/training_example.json and codes/ui_tars/action_parser.py.
UI_TARS_10 = ui_tars(boxed)
# The same repository's README_coordinates.md and README_deploy.md (plain boxes), the parser's lines of 1.5.
UI_TARS_15: list[Line] = [
    *ui_tars(lambda x, y: f"({x},{y})"),
    (ui("click(start_box='(197,525)')"), a.Click(197, 525)),
    (ui("click(start_box='(177,549)')"), a.Click(177, 549)),
]
# The same repository's codes/ui_tars/prompt.py (COMPUTER_USE_DOUBAO) and codes/tests/action_parser_test.py.
DOUBAO: list[Line] = [
    *ui_tars(point, "point", "end_point"),
    (ui("click(point='<point>200 300</point>')"), a.Click(200, 300)),
    (ui("click(point='<point>200 300</point>')") + "[EOS]", a.Click(200, 300)),
]


def found(x: int, y: int, before: str = "") -> Line:
    return f'{before}{{"x":{x},"y":{y}}}', a.Click(min(x, 999), min(y, 999))


# hcompai/hai-cookbook@2ba8961 holo2/*.ipynb: both answers, the schema of the prompt (ClickCoordinates: integers of 0 to
# 1000, in any JSON that model_validate_json takes), thinking on and off; and how vLLM's tests of its parser `holo2` cut
# a thought off, with the opening tag in the prompt.
HOLO2: list[Line] = [
    *(
        found(x, y)
        for x, y in ((552, 404), (240, 490), (0, 0), (1000, 0), (0, 1000), (1000, 1000), (1, 999), (500, 500))
    ),
    *(found(x, 404, "<think>\n\n</think>\n\n") for x in (0, 552, 1000)),
    *(found(552, y, "This is a reasoning section</think>") for y in (0, 404, 1000)),
    *(found(552, y, "<think>\nThe 3rd of August is at (5, 3).\n</think>\n") for y in (7, 404)),
    found(552, 404, "</think>"),
    ('{"x": 555, "y": 405}', a.Click(555, 405)),
    ('{ "x" : 555 , "y" : 405 }', a.Click(555, 405)),
    ('{"y": 405, "x": 555}', a.Click(555, 405)),
    ('{\n  "x": 555,\n  "y": 405\n}', a.Click(555, 405)),
    ('{"x":555,"y":405}\n', a.Click(555, 405)),
    ('{"x":555.0,"y":405.0}', a.Click(555, 405)),
    ('{"x":"555","y":"405"}', a.Click(555, 405)),
    ('```json\n{"x": 555, "y": 405}\n```', a.Click(555, 405)),
    ('{"x":555,"y":405}<|im_end|>', a.Click(555, 405)),
]
OLDER_TABLES: dict[str, tuple[list[Line], int]] = {
    "computer_13": (COMPUTER_13, 1000),
    "pyautogui": (PYAUTOGUI, 1000),
    "opencua": (OPENCUA, 1456),
    "opencua:absolute": (OPENCUA, 1500),
    "opencua:relative": (FRACTIONS, 1000),
    "opencua:relative1000": (THOUSANDTHS, 1000),
    "agent_s": (AGENT_S, 1000),
    "agent_s:s3": (AGENT_S, 1000),
    "openai:computer_use_preview": (PREVIEW, 1000),
    "anthropic:2024-10": (CLAUDE_2024, 1000),
    "anthropic:2025-01": (CLAUDE_2025, 1000),
    "anthropic:2025-11": (CLAUDE_2025, 1000),
    "qwen:2.5": (QWEN25, 1400),
    "ui_tars:1.0": (UI_TARS_10, 1000),
    "ui_tars:1.5": (UI_TARS_15, 1400),
    "ui_tars:doubao": (DOUBAO, 1000),
    "holo:2": (HOLO2, 1000),
}
