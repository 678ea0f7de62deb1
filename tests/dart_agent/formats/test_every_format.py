"""What holds for every format and variant: the registry, round trips, and that any input is read in no time."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dart_agent.formats import InexpressibleError, formats, get_format, variants
from dart_agent.formats.grammar.action_format import MAX_TEXT
from dart_agent.models.coordinates import CoordinateSpace
from dart_gym.core import actions as a
from dart_gym.core.errors import ConfigurationError, PluginError
from tests.dart_agent.formats.action_strategies import any_action
from tests.dart_agent.formats.hostile_responses import HOSTILE, LIMIT_S, SIZE, timed, understood_or_said
from tests.helpers.packages import install

NAMES = [name for base in formats() for name in (base, *(f"{base}:{variant}" for variant in variants(base)))]
SAME = ("ui_tars:1.5", "openai:computer", "anthropic:2025-01", "qwen:3", "opencua:qwen25", "opencua:relative1000")
DISTINCT = [name for name in NAMES if name not in SAME]  # without the variants that are the default, or nearly


# The registry
def test_all_formats_are_known():
    known = "agent_s anthropic computer_13 gemini glm_v holo openai opencua pyautogui qwen ui_tars"
    assert formats() == known.split()
    assert variants("ui_tars") == ["1.0", "1.5", "2", "doubao"]
    for name in NAMES:
        chosen = get_format(name)
        assert chosen.name == name.partition(":")[0]
        assert len(chosen.describe()) > 60


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("uitars", "did you mean 'ui_tars'"),
        ("nothing", "known: agent_s"),
        ("ui_tars:daubao", "did you mean 'doubao'"),
        ("computer_13:x", "known: none"),
    ],
)
def test_unknown_names_suggest(name, says):
    with pytest.raises(ConfigurationError, match=says):
        get_format(name)


def test_unknown_options_say_what_is_known():
    with pytest.raises(ConfigurationError, match="known: 1.0, 1.5, doubao, 2"):
        get_format("ui_tars", dialect="2.0")
    with pytest.raises(ConfigurationError, match="takes no arguments"):
        get_format("pyautogui", dialect="1.0")
    for name, option in (("openai", "tool"), ("anthropic", "version"), ("qwen", "version"), ("opencua", "coordinates")):
        with pytest.raises(ConfigurationError, match="known: "):
            get_format(name, **{option: "none"})


class Mine:
    """UI-TARS's, which waits for as long as one likes."""

    variants = {"slow": {"wait_s": 9.0}}

    def __init__(self, wait_s: float = 1.0) -> None:
        self.other = get_format("ui_tars", wait_s=wait_s)

    def space(self, screen):
        return self.other.space(screen)

    def parse(self, response, screen):
        return self.other.parse(response, screen)

    def format(self, actions, screen, thought=""):
        return self.other.format(actions, screen, thought)

    def describe(self):
        return self.other.describe()


class TooFew(Mine):
    def parse(self, response):
        return None


def test_a_format_of_ones_own_is_named_as_the_others_are(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "my-formats", {"dart_gui.formats": {"mine": f"{__name__}:Mine", "few": f"{__name__}:TooFew"}})
    assert "mine" in formats() and variants("mine") == ["slow"]
    for name in ("mine", f"{__name__}:Mine"):
        assert get_format(name).parse("Action: wait()", SIZE).actions == (a.Wait(1.0),)
        assert get_format(f"{name}:slow").parse("Action: wait()", SIZE).actions == (a.Wait(9.0),)
        with pytest.raises(ConfigurationError, match="did you mean 'slow'"):
            get_format(f"{name}:slwo")
    with pytest.raises(PluginError, match="package 'my-formats' .* has a parse that is called with .self, response"):
        get_format("few")
    with pytest.raises(PluginError, match="cannot be imported.*did you mean 'ui_tars'"):
        get_format("uitars:doubao")


# Round trips
SCREENS = [
    SIZE,
    (1366, 768),
    (3840, 2160),
    (256, 256),
    CoordinateSpace(SIZE, (1280, 720)),
    CoordinateSpace((800, 600), (1000, 750)),
]
CASES = st.sampled_from(SCREENS).flatmap(
    lambda screen: st.tuples(
        st.just(screen), any_action(*(screen.screen if isinstance(screen, CoordinateSpace) else screen))
    )
)

# The kinds of actions of which a format has no spelling at all; others may lack one for some of their fields.
MISSING = {
    "agent_s": "click move drag scroll key_down key_up mouse_down mouse_up ask_user",
    "anthropic": "key_down key_up ask_user",
    "anthropic:2024-10": "key_down key_up ask_user mouse_down mouse_up scroll drag",
    "computer_13": "ask_user",
    "gemini": "ask_user mouse_down mouse_up",
    "gemini:2.5": "ask_user key_down key_up mouse_down mouse_up type",
    "glm_v": "ask_user key_down key_up mouse_down mouse_up",
    "holo": "ask_user drag fail key_down key_up mouse_down mouse_up move press type",
    "holo:1.5": "ask_user done drag fail key_down key_up mouse_down mouse_up move press scroll type wait",
    "holo:2": "ask_user done drag fail key_down key_up mouse_down mouse_up move press scroll type wait",
    "openai": "key_down key_up mouse_down mouse_up ask_user",
    "opencua": "ask_user",
    "pyautogui": "ask_user",
    "qwen": "mouse_down mouse_up",
    "ui_tars": "",
}


def missing(name: str) -> set[str]:
    return set(MISSING.get(name, MISSING[name.partition(":")[0]]).split())


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in NAMES if name not in SAME])
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(case=CASES)
def test_round_trip(name, case):
    screen, action = case
    chosen = get_format(name)
    try:
        text = chosen.format(action, screen)
    except InexpressibleError as error:
        assert name.partition(":")[0] != "ui_tars", "UI-TARS has a spelling for everything"
        assert len(str(error)) < 400
        return
    assert action.kind not in missing(name), "the table above is out of date"
    found = chosen.parse(text, screen)
    assert found.actions == (action,), text
    assert not found.errors


PLAIN = [
    *(a.Click(5, 6), a.Click(1919, 1079, count=2), a.Move(3, 4), a.Drag(((1, 2), (3, 4))), a.Scroll(dy=3)),
    *(a.Scroll(1, 2, 0, -5), a.Type("it's"), a.Press(("ctrl", "+")), a.KeyDown("shift"), a.KeyUp("shift")),
    *(a.MouseDown(), a.MouseUp(), a.Wait(0.0), a.Wait(2.0), a.Done(), a.Fail(), a.AskUser("which?")),
    *(a.Scroll(dy=5), a.Press(("ctrl", "s")), a.Wait(5.0)),
]


@pytest.mark.parametrize("name", NAMES)
def test_every_other_kind_has_a_spelling(name):
    """What a format can say, it says: `InexpressibleError` is for the kinds of the table only."""
    said = set()
    for action in PLAIN:
        try:
            found = get_format(name).parse(get_format(name).format(action, SIZE, "I think."), SIZE)
        except InexpressibleError:
            continue
        assert found.actions == (action,)
        assert found.thought == "I think."
        said.add(action.kind)
    assert said == {action.kind for action in PLAIN} - missing(name)


@pytest.mark.parametrize("name", NAMES)
def test_several_actions(name):
    several: tuple[a.Action, ...] = (a.Click(5, 6), a.Type("x"), a.Press(("enter",)))
    if name.startswith("agent_s"):
        several = (a.Type("x"), a.Press(("enter",)), a.Wait(2.0))
    elif "type" in missing(name):
        several = (a.Click(5, 6), a.Click(7, 8))
    if name == "agent_s:s3":
        with pytest.raises(InexpressibleError, match="one call in a response"):
            get_format(name).format(several, SIZE)
    else:
        assert get_format(name).parse(get_format(name).format(several, SIZE), SIZE).actions == several
    with pytest.raises(InexpressibleError, match="at least one action"):
        get_format(name).format((), SIZE)


def test_tool_schemas_are_json():
    for name in (
        "openai",
        "openai:computer_use_preview",
        "anthropic:2024-10",
        "anthropic:2025-11",
        "anthropic:2026-08",
        "gemini",
        *(f"qwen:{version}" for version in variants("qwen")),
    ):
        schema = get_format(name).tool_schema(SIZE)
        assert json.loads(json.dumps(schema)) == schema
        assert schema.get("type") or schema["computer_use"]


# Any input
@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_input_costs_little(case):
    for name in NAMES:  # not a test each: 1,500 of them would cost more to report than to run
        found, seconds = timed(name, HOSTILE[case])
        understood_or_said(found)
        assert seconds < LIMIT_S, name


@pytest.mark.parametrize("name", NAMES)
def test_longest_response_is_read(name):
    found, seconds = timed(name, "x" * (MAX_TEXT + 1))
    assert "at most" in found.problem
    assert seconds < LIMIT_S


PIECES = st.sampled_from(
    ["Action: ", "Thought: ", "click(", "type(content='", "drag(", "(", ")", "'", '"', "\\", ",", "=", "\n", "\n\n"]
    + ["start_box='(1,2)'", "<point>1 2</point>", "```python\n", "```", "pyautogui.click(", "agent.click('x')", "x=1"]
    + ["computer.terminate(", "1e400", "nan", "**", "lambda: 0", "{", "}", "[", "]", ":", "é", "\0", "\ud800", "-"]
    + ['"parameters"', "<tool_call>", "</tool_call>", '{"name": "computer_use", "arguments": {"action": ', "9999999"]
    + ['"left_click"', '"coordinate": [1, 2]', '{"output": [{"type": "computer_call", "action": {"type": "click"']
    + ["<function=computer_use>", "<parameter=action>", "</parameter>", "</function>", "<|begin_of_box|>", "</think>"]
    + ["left_click(start_box='[1,2]')", "<|end_of_box|>", '{"action": "click_element", ', '"candidates"', "Click(1, 2)"]
    + ['{"content": []}', '"x": 1, "y": 2}}]}', '"action_type"', '"CLICK"', "DONE"]
)
ANYTHING = st.one_of(st.text(), st.binary(), st.lists(PIECES, max_size=25).map("".join))
WORDS = st.sampled_from(
    ["click", "drag", "keypress", "scroll", "left", "tool_use", "computer", "key", "left_click", "up"]
)
FIELDS = st.sampled_from(
    ["output", "type", "action", "actions", "content", "input", "name", "x", "y", "text", "keys", "path", "button"]
    + ["candidates", "parts", "functionCall", "args", "toolset_name", "region", "direction", "safety_decision"]
    + ["coordinate", "action_type", "parameters", "scroll_x", "scroll_amount", "scroll_direction", "duration"]
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(FIELDS, inner, max_size=5),
    max_leaves=20,
)
INPUTS = st.dictionaries(FIELDS, JSON_VALUES | WORDS, max_size=6)


@pytest.mark.parametrize("name", DISTINCT)
@given(response=ANYTHING)
def test_any_text_is_understood_or_said(name, response):
    found, seconds = timed(name, response)
    understood_or_said(found)
    assert seconds < LIMIT_S
    for error in found.errors:
        assert 0 <= error.span[0] <= error.span[1]
        assert isinstance(response, bytes) or error.span[1] <= len(response)


@pytest.mark.parametrize("name", ["openai", "anthropic", "anthropic:2026-08", "computer_13", "gemini"])
@given(response=JSON_VALUES)
def test_any_object_is_understood_or_said(name, response):
    understood_or_said(get_format(name).parse(response, SIZE))


@given(inputs=st.lists(INPUTS, max_size=3))
def test_any_tool_call_is_understood_or_said(inputs):
    call = {"type": "computer_call", "actions": inputs}
    understood_or_said(get_format("openai").parse({"output": [call]}, SIZE))
    uses = [{"type": "tool_use", "name": "computer", "input": given} for given in inputs]
    understood_or_said(get_format("anthropic").parse({"content": uses}, SIZE))
