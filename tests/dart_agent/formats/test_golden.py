"""Golden tables: what models write, by their publishers' documents, SDK types and code, and what it does.

Every table names its source; a line stands for a spelling that the source shows or its code takes. The screens are as
large as the format's coordinates, so that numbers are pixels. What a line means is written again and read again, and
100,000 texts made by breaking these lines raise nothing and take no longer than their length allows.
"""

import json
import random
import time

import pytest
from dart_gym_hosted_models.zoom import Zoom

from dart_agent.formats import InexpressibleError, formats, get_format, variants
from dart_gym.core import actions as a
from tests.dart_agent.formats.older_tables import OLDER_TABLES

ENTER = a.Press(("enter",))


def go(url: str) -> tuple[a.Action, ...]:
    return a.Press(("ctrl", "l")), a.Type(url), ENTER


def qwen(**arguments):
    return f"<tool_call>\n{json.dumps({'name': 'computer_use', 'arguments': arguments})}\n</tool_call>"


def tags(**arguments):
    inside = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in arguments.items())
    return f"Action: I go on.\n<tool_call>\n<function=computer_use>\n{inside}</function>\n</tool_call>"


def seed(inside):
    return f"<gui_think>I see it.</gui_think>\n<seed:tool_call>{inside}</seed:tool_call>"


def box(call):
    return f"I go on. <|begin_of_box|>{call}<|end_of_box|>\nMemory:\n[]"


def use(name, **given):
    block = {"type": "tool_use", "id": "toolu_1", "name": name, "toolset_name": "computer", "input": given}
    return {"content": [block], "stop_reason": "tool_use"}


def gemini(name, **args):
    parts = [{"text": "I go on."}, {"functionCall": {"name": name, "args": args}}]
    return {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}]}


def openai(*actions):
    return {"output": [{"type": "computer_call", "call_id": "c", "status": "completed", "actions": list(actions)}]}


def step(**action):
    return json.dumps({"note": "", "thought": "I go on.", "action": action})


# QwenLM/Qwen3-VL@9658872 cookbooks/utils/agent_function_call.py (class ComputerUse); meituan/EvoCUA@4a0ad5f
# mm_agents/evocua/prompts.py (key_down, key_up) and evocua_agent.py (_parse_response_s2).
QWEN = [
    (qwen(action="key", keys=["ctrl", "c"]), a.Press(("ctrl", "c"))),
    (qwen(action="key", keys=["enter"]), ENTER),
    (qwen(action="key", keys=["ctrl", "shift", "t"]), a.Press(("ctrl", "shift", "t"))),
    (qwen(action="key", keys=["page_down"]), a.Press(("pagedown",))),
    (qwen(action="key", keys=["f5"]), a.Press(("f5",))),
    (qwen(action="key_down", keys=["shift"]), a.KeyDown("shift")),
    (qwen(action="key_up", keys=["shift"]), a.KeyUp("shift")),
    (qwen(action="key_down", keys=["ctrl", "shift"]), (a.KeyDown("ctrl"), a.KeyDown("shift"))),
    (qwen(action="key_up", keys=["ctrl", "shift"]), (a.KeyUp("shift"), a.KeyUp("ctrl"))),
    (qwen(action="type", text="hello world"), a.Type("hello world")),
    (qwen(action="type", text="two\nlines"), a.Type("two\nlines")),
    (qwen(action="mouse_move", coordinate=[500, 300]), a.Move(500, 300)),
    (qwen(action="left_click", coordinate=[500, 300]), a.Click(500, 300)),
    (qwen(action="left_click"), a.Click()),
    (qwen(action="click", coordinate=[5, 3]), a.Click(5, 3)),
    (qwen(action="right_click", coordinate=[500, 300]), a.Click(500, 300, "right")),
    (qwen(action="middle_click", coordinate=[500, 300]), a.Click(500, 300, "middle")),
    (qwen(action="double_click", coordinate=[500, 300]), a.Click(500, 300, count=2)),
    (qwen(action="triple_click", coordinate=[500, 300]), a.Click(500, 300, count=3)),
    (qwen(action="left_click_drag", coordinate=[5, 3]), (a.MouseDown(), a.Move(5, 3), a.MouseUp())),
    (
        qwen(action="mouse_move", coordinate=[1, 2]) + "\n" + qwen(action="left_click_drag", coordinate=[5, 3]),
        a.Drag(((1, 2), (5, 3))),
    ),
    (qwen(action="scroll", pixels=-300), a.Scroll(dy=3)),
    (qwen(action="scroll", pixels=5), a.Scroll(dy=-1)),
    (qwen(action="hscroll", pixels=200), a.Scroll(dx=2)),
    (qwen(action="wait", time=3), a.Wait(3)),
    (qwen(action="terminate", status="success"), a.Done()),
    (qwen(action="terminate", status="failure"), a.Fail()),
    (qwen(action="answer", text="42"), a.Done("42")),
]
# X-PLUG/MobileAgent@11cea57 Mobile-Agent-v3.5/computer_use/utils.py (SYSTEM_PROMPT): as above on 0 to 1000, and these.
OWL = [
    *[line for line in QWEN if "key_" not in line[0]],
    (qwen(action="interact", text="Please log in"), a.AskUser("Please log in")),
    (qwen(action="interact"), a.AskUser("")),
    (qwen(action="left_click", coordinate=[1000, 1000]), a.Click(999, 999)),
]
# qwen35vl_agent.py (system prompt, parse_xml_tool_call and process_tool_call_params), mrwwk/DeskCraft@3e11457.
QWEN35 = [
    (tags(action="key", keys='["ctrl", "c"]'), a.Press(("ctrl", "c"))),
    (tags(action="key", keys='["enter"]'), ENTER),
    (tags(action="key", keys="enter"), ENTER),
    (tags(action="key_down", keys='["shift"]'), a.KeyDown("shift")),
    (tags(action="key_up", keys='["shift"]'), a.KeyUp("shift")),
    (tags(action="type", text="hello world"), a.Type("hello world")),
    (tags(action="type", text="multi\nline"), a.Type("multi\nline")),
    (tags(action="type", text="[1, 2]"), a.Type("[1, 2]")),
    (tags(action="type", text="12"), a.Type("12")),
    (tags(action="type", text=' "quoted" <b>'), a.Type(' "quoted" <b>')),
    (tags(action="mouse_move", coordinate="[5, 3]"), a.Move(5, 3)),
    (tags(action="left_click", coordinate="[5, 3]"), a.Click(5, 3)),
    (tags(action="left_click", coordinate="[5, 3]", text="ctrl"), a.Click(5, 3, modifiers=("ctrl",))),
    (tags(action="left_click", coordinate="[5, 3]", text="ctrl+shift"), a.Click(5, 3, modifiers=("ctrl", "shift"))),
    (tags(action="right_click", coordinate="[5, 3]"), a.Click(5, 3, "right")),
    (tags(action="middle_click", coordinate="[5, 3]"), a.Click(5, 3, "middle")),
    (tags(action="double_click", coordinate="[5, 3]", text="shift"), a.Click(5, 3, count=2, modifiers=("shift",))),
    (tags(action="triple_click", coordinate="[5, 3]"), a.Click(5, 3, count=3)),
    (tags(action="left_click_drag", coordinate="[5, 3]"), (a.MouseDown(), a.Move(5, 3), a.MouseUp())),
    (tags(action="scroll", pixels="-500"), a.Scroll(dy=5)),
    (tags(action="scroll", pixels="300", coordinate="[5, 3]"), a.Scroll(5, 3, dy=-3)),
    (tags(action="scroll", pixels="100", text="ctrl"), (a.KeyDown("ctrl"), a.Scroll(dy=-1), a.KeyUp("ctrl"))),
    (tags(action="hscroll", pixels="200"), a.Scroll(dx=2)),
    (tags(action="wait", time="2.5"), a.Wait(2.5)),
    (tags(action="terminate", status="success"), a.Done()),
    (tags(action="terminate", status="failure"), a.Fail()),
    (tags(action="answer", text="42"), a.Done("42")),
]
# microsoft/fara@3f3f1fd src/fara/_prompts.py (FaraComputerUse) and fara_agent.py (execute_action).
FARA = [
    (qwen(action="key", keys=["Enter"]), ENTER),
    (qwen(action="key", keys=["Control", "c"]), a.Press(("ctrl", "c"))),
    (qwen(action="key", keys=["ArrowDown"]), a.Press(("down",))),
    (qwen(action="key", keys=["PageUp"]), a.Press(("pageup",))),
    (qwen(action="key", keys=["Escape"]), a.Press(("esc",))),
    (qwen(action="key", keys=["Backspace"]), a.Press(("backspace",))),
    (qwen(action="keypress", keys=["Tab"]), a.Press(("tab",))),
    (qwen(action="type", text="x", press_enter=False), a.Type("x")),
    (qwen(action="type", text="x", coordinate=[5, 3]), (a.Click(5, 3), a.Type("x"), ENTER)),
    (qwen(action="type", text="x", coordinate=[5, 3], press_enter=False), (a.Click(5, 3), a.Type("x"))),
    (
        qwen(action="type", text="x", coordinate=[5, 3], press_enter=True, delete_existing_text=True),
        (a.Click(5, 3), a.Press(("ctrl", "a")), a.Press(("backspace",)), a.Type("x"), ENTER),
    ),
    (qwen(action="input_text", text="x", coordinate=[5, 3]), (a.Click(5, 3), a.Type("x"), ENTER)),
    (qwen(action="mouse_move", coordinate=[5, 3]), a.Move(5, 3)),
    (qwen(action="hover", coordinate=[5, 3]), a.Move(5, 3)),
    (qwen(action="left_click", coordinate=[5, 3]), a.Click(5, 3)),
    (qwen(action="click", coordinate=[5, 3]), a.Click(5, 3)),
    (qwen(action="scroll", pixels=-800), a.Scroll(dy=8)),
    (qwen(action="scroll", pixels=800), a.Scroll(dy=-8)),
    (qwen(action="visit_url", url="https://example.com"), go("https://example.com")),
    (qwen(action="visit_url", url="example.com"), go("example.com")),
    (qwen(action="web_search", query="a b&c"), go("https://www.bing.com/search?q=a+b%26c&FORM=QBLH")),
    (qwen(action="history_back"), a.Press(("alt", "left"))),
    (qwen(action="pause_and_memorize_fact", fact="It costs 5 $."), a.Wait(0.0)),
    (qwen(action="wait", time=5), a.Wait(5)),
    (qwen(action="sleep", time=3), a.Wait(3)),
    (qwen(action="terminate", status="success"), a.Done()),
    (qwen(action="terminate", status="failure"), a.Fail()),
]
# hcompai/hai-cookbook@2ba8961 utils/navigation.py (ActionSpace), utils/localization.py, holo1_5 quickstart.
HOLO = [
    ('{"action": "click_absolute", "x": 352, "y": 348}', a.Click(352, 348)),
    ('{"action":"click_absolute","x":0,"y":0}', a.Click(0, 0)),
    ('```json\n{"action": "click_absolute", "x": 5, "y": 3}\n```', a.Click(5, 3)),
    ('{"action": "click", "x": 5, "y": 3}', a.Click(5, 3)),
    ("Click(5, 3)", a.Click(5, 3)),
    ("Click(352,348)", a.Click(352, 348)),
    ("The answer is Click(5, 3).", a.Click(5, 3)),
    ('{"x": 5, "y": 3}', a.Click(5, 3)),
    (step(action="click_element", element="the Save button", x=5, y=3), a.Click(5, 3)),
    (step(action="click_element", element="Größe", x=500, y=300), a.Click(500, 300)),
    (step(action="click_element", element='a "quoted" name', x=1, y=2), a.Click(1, 2)),
    (step(action="write_element_abs", content="hotel", element="f", x=5, y=3), (a.Click(5, 3), a.Type("hotel"), ENTER)),
    (step(action="write_element_abs", content="a\nb", element="", x=5, y=3), (a.Click(5, 3), a.Type("a\nb"), ENTER)),
    (step(action="scroll", direction="down"), a.Scroll(dy=5)),
    (step(action="scroll", direction="up"), a.Scroll(dy=-5)),
    (step(action="scroll", direction="left"), a.Scroll(dx=-5)),
    (step(action="scroll", direction="right"), a.Scroll(dx=5)),
    (step(action="go_back"), a.Press(("alt", "left"))),
    (step(action="refresh"), a.Press(("f5",))),
    (step(action="goto", url="https://example.com"), go("https://example.com")),
    (step(action="goto", url="http://example.com/a?b=c"), go("http://example.com/a?b=c")),
    (step(action="wait", seconds=2), a.Wait(2)),
    (step(action="wait"), a.Wait(2)),
    (step(action="wait", seconds=10), a.Wait(10)),
    (step(action="answer", content="42"), a.Done("42")),
    (step(action="answer", content=""), a.Done()),
    (json.dumps({"thought": "t", "action": {"action": "go_back"}}), a.Press(("alt", "left"))),
]
# zai-org/GLM-V@8fc9756 examples/gui-agent/glm-45v/agent.md ("Desktop Environment": call rules and the example).
GLM = [
    (box("left_click(start_box='[162, 212]', element_info='Transform option')"), a.Click(162, 212)),
    (box("left_click(start_box='[168, 213]', element_info='Transform option')"), a.Click(168, 213)),
    (box("left_click(start_box='[320, 211]', element_info='Flip Horizontally option')"), a.Click(320, 211)),
    (box("left_click(start_box='[339, 211]', element_info='Flip Horizontally option')"), a.Click(339, 211)),
    (box("left_click(start_box='[5,3]', element_info='')"), a.Click(5, 3)),
    (box("left_click(start_box='[5,3]')"), a.Click(5, 3)),
    (box("right_click(start_box='[5,3]', element_info='')"), a.Click(5, 3, "right")),
    (box("middle_click(start_box='[5,3]', element_info='')"), a.Click(5, 3, "middle")),
    (box("hover(start_box='[5,3]', element_info='')"), a.Move(5, 3)),
    (box("left_double_click(start_box='[5,3]', element_info='')"), a.Click(5, 3, count=2)),
    (box("left_drag(start_box='[1,2]', end_box='[5,3]', element_info='')"), a.Drag(((1, 2), (5, 3)))),
    (box("left_drag(start_box='[1, 2]', end_box='[5, 3]')"), a.Drag(((1, 2), (5, 3)))),
    (box("key(keys='ctrl+c')"), a.Press(("ctrl", "c"))),
    (box("key(keys='alt+tab')"), a.Press(("alt", "tab"))),
    (box("key(keys='enter')"), ENTER),
    (box("type(content='hello')"), a.Type("hello")),
    (box("type(content='it\\'s done')"), a.Type("it's done")),
    (box("type(content='it's done')"), a.Type("it's done")),
    (box("type(content='a\\nb')"), a.Type("a\nb")),
    (box("scroll(start_box='[5,3]', direction='down', step=5, element_info='')"), a.Scroll(5, 3, 0, 5)),
    (box("scroll(start_box='[5,3]', direction='up', step=2)"), a.Scroll(5, 3, 0, -2)),
    (box("scroll(start_box='[5,3]', direction='down')"), a.Scroll(5, 3, 0, 5)),
    (box("WAIT()"), a.Wait(5.0)),
    (box("DONE()"), a.Done()),
    (box("FAIL()"), a.Fail()),
    ("I click.\nAction: left_click(start_box='[5, 3]', element_info='x')\nMemory:\n[]", a.Click(5, 3)),
    ("I click.\nleft_click(start_box='[5, 3]')", a.Click(5, 3)),
]
# The package ui-tars 0.5.1 (formatter_xml05, formatter_xml06) and the functions in the calls of UI-TARS-2's examples.
SEED = [
    (seed("<function=click><parameter=point><point>5 3</point></parameter></function>"), a.Click(5, 3)),
    (seed('<function=click><parameter=point string="true"><point>5 3</point></parameter></function>'), a.Click(5, 3)),
    (
        seed('<function name="click"><parameter name="point" string="true"><point>5 3</point></parameter></function>'),
        a.Click(5, 3),
    ),
    (seed("\n<function=click>\n<parameter=point><point>5 3</point></parameter>\n</function>\n"), a.Click(5, 3)),
    (seed("<function=left_double><parameter=point><point>5 3</point></parameter></function>"), a.Click(5, 3, count=2)),
    (seed("<function=right_single><parameter=point><point>5 3</point></parameter></function>"), a.Click(5, 3, "right")),
    (
        seed(
            "<function=drag><parameter=start_point><point>1 2</point></parameter><parameter=end_point>"
            "<point>5 3</point>"
            "</parameter></function>"
        ),
        a.Drag(((1, 2), (5, 3))),
    ),
    *(
        (
            seed(
                f"<function=scroll><parameter=direction>{way}</parameter><parameter=point>"
                "<point>5 3</point></parameter>"
                "</function>"
            ),
            a.Scroll(5, 3, dx, dy),
        )
        for way, dx, dy in (("up", 0, -5), ("down", 0, 5), ("left", -5, 0), ("right", 5, 0))
    ),
    (seed("<function=scroll><parameter=direction>down</parameter></function>"), a.Scroll(dy=5)),
    (seed("<function=move_to><parameter=point><point>5 3</point></parameter></function>"), a.Move(5, 3)),
    (seed("<function=hotkey><parameter=key>ctrl c</parameter></function>"), a.Press(("ctrl", "c"))),
    (seed("<function=hotkey><parameter=key>ctrl shift t</parameter></function>"), a.Press(("ctrl", "shift", "t"))),
    (seed("<function=press><parameter=key>enter</parameter></function>"), ENTER),
    (seed("<function=release><parameter=key>shift</parameter></function>"), a.KeyUp("shift")),
    (seed("<function=mouse_down><parameter=button>left</parameter></function>"), a.MouseDown()),
    (seed("<function=mouse_up><parameter=button>right</parameter></function>"), a.MouseUp("right")),
    (seed("<function=type><parameter=content>hello</parameter></function>"), a.Type("hello")),
    (seed("<function=type><parameter=content>it's\n</parameter></function>"), a.Type("it's\n")),
    (seed("<function=wait></function>"), a.Wait(5.0)),
    (seed("<function=wait><parameter=time>2</parameter></function>"), a.Wait(2)),
    (seed("<function=finished><parameter=content>42</parameter></function>"), a.Done("42")),
    (seed("<function=finished></function>"), a.Done()),
    (seed("<function=call_user><parameter=content>which?</parameter></function>"), a.Fail("which?")),
    (
        seed(
            "<function=click><parameter=point><point>5 3</point></parameter></function>"
            "<function=type><parameter=content>x</parameter></function>"
        ),
        (a.Click(5, 3), a.Type("x")),
    ),
]
# The package anthropic 2.12.0, types/beta/beta_computer_*_input.py: the 17 members of computer_toolset_20260801.
CLAUDE = [
    (use("left_click", coordinate=[5, 3]), a.Click(5, 3)),
    (use("left_click"), a.Click()),
    (use("left_click", coordinate=[5, 3], text="ctrl"), a.Click(5, 3, modifiers=("ctrl",))),
    (use("left_click", coordinate=[5, 3], text="ctrl+shift"), a.Click(5, 3, modifiers=("ctrl", "shift"))),
    (use("right_click", coordinate=[5, 3]), a.Click(5, 3, "right")),
    (use("middle_click", coordinate=[5, 3]), a.Click(5, 3, "middle")),
    (use("double_click", coordinate=[5, 3]), a.Click(5, 3, count=2)),
    (use("triple_click", coordinate=[5, 3], text=None), a.Click(5, 3, count=3)),
    (use("left_click_drag", start_coordinate=[1, 2], coordinate=[5, 3]), a.Drag(((1, 2), (5, 3)))),
    (
        use("left_click_drag", start_coordinate=[1, 2], coordinate=[5, 3], text="shift"),
        (a.KeyDown("shift"), a.Drag(((1, 2), (5, 3))), a.KeyUp("shift")),
    ),
    (use("mouse_move", coordinate=[5, 3]), a.Move(5, 3)),
    (use("left_mouse_down"), a.MouseDown()),
    (use("left_mouse_up"), a.MouseUp()),
    (use("key", text="ctrl+s"), a.Press(("ctrl", "s"))),
    (use("key", text="alt+Tab"), a.Press(("alt", "tab"))),
    (use("key", text="ctrl+shift+Escape"), a.Press(("ctrl", "shift", "esc"))),
    *(
        (use("key", text=name), a.Press((key,)))
        for name, key in (
            *(("Return", "enter"), ("Tab", "tab"), ("Escape", "esc"), ("Up", "up"), ("Down", "down"), ("Left", "left")),
            *(("Right", "right"), ("Home", "home"), ("End", "end"), ("Page_Up", "pageup"), ("Page_Down", "pagedown")),
            *(("Delete", "delete"), ("BackSpace", "backspace")),
        )
    ),
    (use("key", text="Down", repeat=2), (a.Press(("down",)), a.Press(("down",)))),
    (use("hold_key", text="shift", duration=2), (a.KeyDown("shift"), a.Wait(2), a.KeyUp("shift"))),
    (use("type", text="hello"), a.Type("hello")),
    (use("wait", duration=2), a.Wait(2)),
    (use("screenshot"), a.Wait(0.0)),
    *(
        (use("scroll", coordinate=[5, 3], scroll_direction=way, scroll_amount=3), a.Scroll(5, 3, dx, dy))
        for way, dx, dy in (("up", 0, -3), ("down", 0, 3), ("left", -3, 0), ("right", 3, 0))
    ),
    (use("scroll", scroll_direction="down", scroll_amount=3), a.Scroll(dy=3)),
    (use("zoom", region=[10, 20, 110, 220]), Zoom((10, 20, 110, 220))),
]
# google-gemini/computer-use-preview@c93bb2d agent.py: PREDEFINED_COMPUTER_USE_FUNCTIONS and handle_action.
GEMINI = [
    (gemini("click", x=5, y=3), a.Click(5, 3)),
    (gemini("double_click", x=5, y=3), a.Click(5, 3, count=2)),
    (gemini("triple_click", x=5, y=3), a.Click(5, 3, count=3)),
    (gemini("middle_click", x=5, y=3), a.Click(5, 3, "middle")),
    (gemini("right_click", x=5, y=3), a.Click(5, 3, "right")),
    (gemini("mouse_down", x=5, y=3), (a.Move(5, 3), a.MouseDown())),
    (gemini("mouse_up", x=5, y=3), (a.Move(5, 3), a.MouseUp())),
    (gemini("move", x=5, y=3), a.Move(5, 3)),
    (gemini("type", text="x"), a.Type("x")),
    (gemini("type", text="x", press_enter=True), (a.Type("x"), ENTER)),
    (gemini("drag_and_drop", x=1, y=2, destination_x=5, destination_y=3), a.Drag(((1, 2), (5, 3)))),
    (gemini("wait", seconds=3), a.Wait(3)),
    (gemini("wait"), a.Wait(1)),
    (gemini("press_key", key="Enter"), ENTER),
    (gemini("key_down", key="shift"), a.KeyDown("shift")),
    (gemini("key_up", key="shift"), a.KeyUp("shift")),
    (gemini("hotkey", keys=["control", "c"]), a.Press(("ctrl", "c"))),
    (gemini("take_screenshot"), a.Wait(0.0)),
    (gemini("scroll", x=5, y=3, direction="down"), a.Scroll(5, 3, 0, 8)),
    (gemini("scroll", x=5, y=3, direction="up", magnitude=300), a.Scroll(5, 3, 0, -3)),
    (gemini("scroll", x=5, y=3, direction="left", magnitude=200), a.Scroll(5, 3, -2, 0)),
    (gemini("scroll", x=5, y=3, direction="right", magnitude=200), a.Scroll(5, 3, 2, 0)),
    (gemini("go_back"), a.Press(("alt", "left"))),
    (gemini("go_forward"), a.Press(("alt", "right"))),
    (gemini("navigate", url="https://example.com"), go("https://example.com")),
    (gemini("click", x=1000, y=1000), a.Click(999, 999)),
    (gemini("click", x=5, y=3, intent="open the menu"), a.Click(5, 3)),
]
# The same file: LEGACY_PREDEFINED_COMPUTER_USE_FUNCTIONS and handle_legacy_action; test_agent.py.
CLEARED = (a.Press(("ctrl", "a")), a.Press(("backspace",)))
GEMINI25 = [
    (gemini("open_web_browser"), a.Wait(0.0)),
    (gemini("click_at", x=100, y=200), a.Click(100, 200)),
    (gemini("hover_at", x=100, y=200), a.Move(100, 200)),
    (gemini("type_text_at", x=100, y=200, text="hello"), (a.Click(100, 200), *CLEARED, a.Type("hello"))),
    (
        gemini("type_text_at", x=1, y=2, text="x", press_enter=True, clear_before_typing=False),
        (a.Click(1, 2), a.Type("x"), ENTER),
    ),
    (gemini("type_text_at", x=1, y=2, text="x", press_enter=True), (a.Click(1, 2), *CLEARED, a.Type("x"), ENTER)),
    (gemini("scroll_document", direction="down"), a.Scroll(dy=8)),
    (gemini("scroll_document", direction="up"), a.Scroll(dy=-8)),
    (gemini("scroll_document", direction="left"), a.Scroll(dx=-8)),
    (gemini("scroll_document", direction="right"), a.Scroll(dx=8)),
    (gemini("scroll_at", x=5, y=3, direction="down"), a.Scroll(5, 3, 0, 8)),
    (gemini("scroll_at", x=5, y=3, direction="up", magnitude=400), a.Scroll(5, 3, 0, -4)),
    (gemini("scroll_at", x=5, y=3, direction="right", magnitude=10), a.Scroll(5, 3, 1, 0)),
    (gemini("wait_5_seconds"), a.Wait(5.0)),
    (gemini("go_back"), a.Press(("alt", "left"))),
    (gemini("go_forward"), a.Press(("alt", "right"))),
    (gemini("search"), go("https://www.google.com")),
    (gemini("navigate", url="https://example.com"), go("https://example.com")),
    (gemini("navigate", url="example.com/a"), go("example.com/a")),
    (gemini("key_combination", keys="control+c"), a.Press(("ctrl", "c"))),
    (gemini("key_combination", keys="enter"), ENTER),
    (gemini("key_combination", keys="control+shift+t"), a.Press(("ctrl", "shift", "t"))),
    (gemini("drag_and_drop", x=1, y=2, destination_x=5, destination_y=3), a.Drag(((1, 2), (5, 3)))),
    (gemini("drag_and_drop", x=0, y=0, destination_x=1000, destination_y=1000), a.Drag(((0, 0), (999, 999)))),
    (gemini("click_at", x=0, y=0), a.Click(0, 0)),
]
# The package openai 3.54.0, types/responses/computer_action.py and computer_action_list.py: `actions` in one call.
POINT = {"x": 5, "y": 3}
OPENAI = [
    *(
        (openai({"type": "click", **POINT, "button": button}), a.Click(5, 3, means))
        for button, means in (("left", "left"), ("right", "right"), ("wheel", "middle"))
    ),
    (openai({"type": "click", **POINT, "button": "left", "keys": ["CTRL"]}), a.Click(5, 3, modifiers=("ctrl",))),
    (openai({"type": "double_click", **POINT}), a.Click(5, 3, count=2)),
    (openai({"type": "double_click", **POINT, "keys": None}), a.Click(5, 3, count=2)),
    (openai({"type": "double_click", **POINT, "keys": ["SHIFT"]}), a.Click(5, 3, count=2, modifiers=("shift",))),
    (openai({"type": "drag", "path": [{"x": 1, "y": 2}, POINT]}), a.Drag(((1, 2), (5, 3)))),
    (openai({"type": "drag", "path": [{"x": 1, "y": 2}, POINT, {"x": 7, "y": 8}]}), a.Drag(((1, 2), (5, 3), (7, 8)))),
    *(
        (openai({"type": "keypress", "keys": [name]}), a.Press((key,)))
        for name, key in (
            *(("ENTER", "enter"), ("TAB", "tab"), ("ESC", "esc"), ("ARROWUP", "up"), ("BACKSPACE", "backspace")),
            *(("PAGEDOWN", "pagedown"), ("SPACE", "space"), ("F5", "f5")),
        )
    ),
    (openai({"type": "keypress", "keys": ["CTRL", "SHIFT", "T"]}), a.Press(("ctrl", "shift", "t"))),
    (openai({"type": "move", **POINT}), a.Move(5, 3)),
    (openai({"type": "screenshot"}), a.Wait(0.0)),
    (openai({"type": "scroll", **POINT, "scroll_x": 0, "scroll_y": 300}), a.Scroll(5, 3, 0, 3)),
    (openai({"type": "scroll", **POINT, "scroll_x": 0, "scroll_y": -300}), a.Scroll(5, 3, 0, -3)),
    (openai({"type": "scroll", **POINT, "scroll_x": 200, "scroll_y": 0}), a.Scroll(5, 3, 2, 0)),
    (openai({"type": "type", "text": "hello"}), a.Type("hello")),
    (openai({"type": "wait"}), a.Wait(2.0)),
    (
        openai({"type": "click", **POINT, "button": "left"}, {"type": "type", "text": "x"}),
        (a.Click(5, 3), a.Type("x")),
    ),
    (
        openai({"type": "move", **POINT}, {"type": "wait"}, {"type": "screenshot"}),
        (a.Move(5, 3), a.Wait(2.0), a.Wait(0.0)),
    ),
]
TABLES = {
    "qwen:3": (QWEN, 999),
    "qwen:owl": (OWL, 1000),
    "qwen:3.5": (QWEN35, 999),
    "qwen:fara": (FARA, 1400),
    "holo": (HOLO, 1400),
    "holo:1.5": (HOLO, 1400),
    "glm_v": (GLM, 999),
    "ui_tars:2": (SEED, 1000),
    "anthropic:2026-08": (CLAUDE, 1000),
    "gemini": (GEMINI, 1000),
    "gemini:2.5": (GEMINI25, 1000),
    "openai": (OPENAI, 1000),
    **OLDER_TABLES,
}
LINES = [
    pytest.param(name, index, id=f"{name}-{index}")
    for name, (lines, _) in TABLES.items()
    for index in range(len(lines))
]


def test_every_format_has_a_table_that_is_long_enough():
    default = {"holo": "1", "gemini": "3.5", "openai": "computer", "opencua": "qwen25"}  # in the table without a name
    missing = {
        (base, variant)
        for base in formats()
        for variant in variants(base) or [""]
        if not {f"{base}:{variant}".rstrip(":"), base if default.get(base) == variant else ""} & TABLES.keys()
    }
    assert not missing
    assert not {name for name, (lines, _) in TABLES.items() if len(dict.fromkeys(map(repr, lines))) < 25}


@pytest.mark.parametrize(("name", "index"), LINES)
def test_golden(name, index):
    lines, side = TABLES[name]
    response, expected = lines[index]
    expected = expected if isinstance(expected, tuple) else (expected,)
    found = get_format(name).parse(response, (side, side))
    assert (found.actions, found.errors) == (expected, ())
    try:
        written = get_format(name).format(expected, (side, side))
    except InexpressibleError:
        return
    again = get_format(name).parse(written, (side, side))
    assert (again.actions, again.errors) == (expected, ())


REFUSED = [
    ("qwen:3", qwen(action="levitate"), "unknown action 'levitate'; known: left_click"),
    ("qwen:3", qwen(action="key_down"), "needs keys"),
    ("qwen:3.5", tags(action="left_click", coordinate="[5"), "no valid JSON"),
    ("qwen:3.5", tags(action="left_click", coordinate="5, 3"), "no valid JSON|two numbers"),
    ("qwen:3.5", "<tool_call>\n<function=search>\n</function>\n</tool_call>", "one <function=computer_use>"),
    ("qwen:3.5", "<tool_call>\n<function=computer_use>\n<parameter=action>\nleft_click", "</function> is missing"),
    ("qwen:fara", qwen(action="visit_url"), "needs url"),
    ("holo", step(action="restart"), "not begun again"),
    ("holo", step(action="fly"), "unknown action 'fly'"),
    ("holo", step(action="scroll", direction="in"), "direction must be"),
    ("holo", "I would click.", "no JSON object"),
    ("glm_v", box("click_left(start_box='[5,3]')"), "unknown action 'click_left'"),
    ("glm_v", box("left_click(start_box='5;3')"), "is not a place"),
    ("glm_v", box("scroll(start_box='[5,3]', direction='left')"), "down or up"),
    ("glm_v", "Nothing to do.", "no call in"),
    ("ui_tars:2", seed("<function=fly></function>"), "unknown action 'fly'"),
    ("anthropic:2026-08", use("zoom", region=[5, 5, 5, 5]), "some area"),
    ("anthropic:2026-08", use("zoom", region=[5, 5]), r"needs region"),
    ("anthropic:2026-08", use("teleport"), "'teleport' is not offered"),
    ("anthropic:2026-08", use("cursor_position"), "not offered"),
    ("anthropic:2025-11", use("left_click", coordinate=[5, 3]), "not the tool computer"),
    ("gemini", gemini("fly"), "unknown function 'fly'"),
    ("gemini", gemini("click", x=5), "two numbers"),
    (
        "gemini",
        gemini("click", x=5, y=3, safety_decision={"decision": "require_confirmation", "explanation": "It buys."}),
        "waits for a person's confirmation.*It buys",
    ),
    ("gemini", {"candidates": [{"finishReason": "SAFETY"}]}, "refused"),
    ("gemini", {"candidates": [{"content": {"parts": []}, "finishReason": "MAX_TOKENS"}]}, "cut off"),
    ("gemini", {"candidates": []}, "no function call"),
]


@pytest.mark.parametrize(("name", "response", "says"), REFUSED)
def test_what_is_not_understood_is_said_for_the_model_to_read(name, response, says):
    import re

    found = get_format(name).parse(response, (1000, 1000))
    assert not found.actions
    assert re.search(says, found.problem)


def test_a_place_off_the_screen_stays_off_it_for_the_desktop_to_say():
    """No format moves it onto the screen in silence."""
    for name, response in (
        ("qwen:3", qwen(action="left_click", coordinate=[5000, 3])),
        ("glm_v", box("left_click(start_box='[5000,3]')")),
        ("gemini", gemini("click", x=5000, y=3)),
        ("holo", '{"action": "click_absolute", "x": 50000, "y": 3}'),
    ):
        (click,) = get_format(name).parse(response, (1000, 1000)).actions
        assert click.x > 1000


def test_zooming_shows_a_part_and_only_what_is_there():
    import numpy as np

    screen = np.arange(300, dtype=np.uint8).reshape(10, 10, 3)
    assert (Zoom((2, 1, 5, 4)).cropped(screen) == screen[1:4, 2:5]).all()
    with pytest.raises(ValueError, match="not within the screen of 10x10"):
        Zoom((2, 1, 11, 4)).cropped(screen)


JUNK = ["", "<", ">", "</", "'", '"', "\\", "{", "}", "[", "]", "(", ")", ",", "=", "\n", "\0", "é", "\ud800", "1e999"]
JUNK += ["NaN", "-", "null", "</tool_call>", "</parameter>", "</function>", "<|end_of_box|>", "<|begin_of_box|>", "```"]
JUNK += ["9" * 400, "[" * 300, "{" * 300, "<function=" * 40, "<parameter=a>" * 40, "Action:" * 40, '"' * 301, "\\u12"]


def broken(line: object, draw: random.Random) -> str:
    """A golden line as text with a few pieces cut out, doubled or put in."""
    text = line if isinstance(line, str) else json.dumps(line)
    for _ in range(draw.randint(1, 4)):
        start = draw.randrange(len(text) + 1)
        end = min(len(text), start + draw.choice((0, 1, 3, 20)))
        text = text[:start] + draw.choice((draw.choice(JUNK), text[start:end] * 2)) + text[end:]
    return text


def fuzz(count: int, seed_: int) -> None:
    draw = random.Random(seed_)
    parsers = [(name, get_format(name), lines, side) for name, (lines, side) in TABLES.items()]
    for _ in range(count):
        name, chosen, lines, side = draw.choice(parsers)
        text = broken(draw.choice(lines)[0], draw)
        found = chosen.parse(text, (side, side))
        assert found.actions or found.errors, (name, text)
        assert all(len(error.reason) <= 280 for error in found.errors), (name, text)


def test_broken_lines_raise_nothing():
    fuzz(5_000, 1)


@pytest.mark.slow
def test_a_hundred_thousand_broken_lines_raise_nothing():
    fuzz(100_000, 2)


@pytest.mark.parametrize("name", TABLES)
def test_time_is_linear_in_the_length(name):
    """Eight times the text takes at most thirty times as long: a square would be sixty-four."""
    lines, side = TABLES[name]
    chosen = get_format(name)
    for line, _ in lines[:: max(1, len(lines) // 4)]:
        text = line if isinstance(line, str) else json.dumps(line)
        for piece in (
            "<function=a><parameter=a>",
            "<|begin_of_box|>left_click(",
            '{"action": ',
            "Click(1, ",
            text[:40],
        ):
            short, long = text + piece * 400, text + piece * 3_200

            def took(said: str) -> float:
                started = time.thread_time()
                chosen.parse(said, (side, side))
                return time.thread_time() - started

            if took(long) > 0.02:
                best = min(took(long) for _ in range(4))
                assert best <= 30 * min(took(short) for _ in range(5)), (name, piece)
