"""A corpus of responses of all formats as models, servers and bug reports show them, each with what it means.

One JSON file for each format and variant: a list of `{"response", "expected"}`. Expected are actions in the short
notation of `short`, in order, or "!" and words that the reason must hold; then nothing is carried out.
"""

import json
import random
import time
from dataclasses import fields
from pathlib import Path

import pytest

from dart_agent.formats import InexpressibleError, formats, get_format, variants
from dart_agent.formats.grammar.action_format import EndedWhileThinking, ParsedResponse
from dart_agent.models.coordinates import CoordinateSpace
from dart_gym.core import actions as a
from tests.dart_agent.formats.hostile_responses import understood_or_said

HERE = Path(__file__).parents[2] / "data" / "responses"
FILES = sorted(HERE.glob("*.json"))
SPACE = CoordinateSpace((1000, 1000), (1000, 1000))
SCREENS = {"qwen:3": (999, 999), "qwen:3.5": (999, 999), "glm_v": (999, 999)}  # so that numbers are pixels
MUTATION_S = 12.0
PIECES = [
    "<think>",
    "</think>",
    "Action:",
    "Action：",
    "<tool_call>",
    "</tool_call>",
    "```",
    "\n",
    "'",
    '"',
    "(",
    "）",
    "{",
    "}",
]
PIECES += [
    "<|channel|>final<|message|>",
    "◁/think▷",
    "\ud800",
    "%",
    "，",
    "ctrl--",
    "\\",
    "<|end_of_box|>",
    "DONE",
    "9" * 20,
]


def named(path: Path) -> str:
    return path.stem.replace("@", ":")


def cases(path: Path) -> list[dict[str, object]]:
    return json.loads(path.read_text(encoding="utf-8"))


ALL = [(named(path), case) for path in FILES for case in cases(path)]


def short(action: a.Action) -> str:
    """An action in the corpus's notation."""
    match action:
        case a.Click():
            extra = f" {action.button}" if action.button != "left" else f" x{action.count}" if action.count > 1 else ""
            return f"click {action.x} {action.y}{extra}"
        case a.Move():
            return f"move {action.x} {action.y}"
        case a.Drag():
            return "drag " + " ".join(str(number) for point in action.path for number in point)
        case a.Scroll():
            return f"scroll {action.x} {action.y} {action.dx} {action.dy}"
        case a.Type():
            return f"type:{action.text}"
        case a.Press():
            return "press:" + "+".join(action.keys)
        case a.KeyDown() | a.KeyUp():
            return f"{action.kind.replace('_', '')}:{action.key}"
        case a.Wait():
            return f"wait:{action.seconds:g}"
        case a.Done():
            return f"done:{action.answer}"
        case a.Fail():
            return f"fail:{action.reason}"
    return repr(action)


def read(name: str, response: object) -> ParsedResponse:
    return get_format(name).parse(response, SCREENS.get(name, SPACE))


@pytest.mark.parametrize("path", FILES, ids=named)
def test_every_response_means_what_it_should(path):
    for case in cases(path):
        found, expected = read(named(path), case["response"]), case["expected"]
        if isinstance(expected, str):
            assert found.errors and expected[1:] in found.problem, (case, found)
            if "while thinking" in expected:
                assert any(isinstance(error, EndedWhileThinking) for error in found.errors), case
                assert "max_tokens" in found.problem
                assert not found.actions, case
        else:
            assert not found.errors, (case, found.problem)
            assert [short(action) for action in found.actions] == expected, case


def test_the_corpus_is_large_and_knows_every_format():
    assert len(ALL) >= 300
    assert set(formats()) - {"mine"} <= {name.partition(":")[0] for name, _ in ALL}
    assert {f"qwen:{variant}" for variant in variants("qwen")} <= {name for name, _ in ALL}


def mutated(text: str, draw: random.Random, other: str) -> str:
    """A text with a few pieces dropped, doubled, swapped with another's, or put in."""
    for _ in range(draw.randrange(1, 4)):
        start = draw.randrange(len(text) + 1)
        end = min(len(text), start + draw.randrange(1, 30))
        middle = draw.choice(
            (text[start:end] * 2, "", draw.choice(PIECES) + text[start:end], draw.choice(PIECES), other[start:end])
        )
        text = text[:start] + middle + text[end:]
    return text


@pytest.mark.thorough
def test_mutations_are_understood_or_said_in_no_time():
    draw = random.Random(20261126)
    texts = [(name, case["response"]) for name, case in ALL]
    texts = [(name, text if isinstance(text, str) else json.dumps(text)) for name, text in texts]
    until = time.monotonic() + MUTATION_S
    for _ in range(6000):
        name, text = draw.choice(texts)
        response = mutated(text, draw, draw.choice(texts)[1])
        started = time.thread_time()
        understood_or_said(read(name, response))
        assert time.thread_time() - started < 0.5, (name, response)
        if time.monotonic() > until:
            break


def thoughts(name: str) -> tuple[str, str]:
    """What is thought (the end of the episode, where the format can say that), and what is done."""
    chosen = get_format(name)
    try:
        ending = a.Fail() if name.startswith("glm") else a.Done()
        return chosen.format(ending, SPACE), chosen.format(a.Wait(5.0), SPACE)
    except InexpressibleError:
        return chosen.format(a.Click(1, 1), SPACE), chosen.format(a.Click(500, 500), SPACE)


MARKS = [
    "<think>{}</think>{}",
    "{}</think>{}",
    "<think>\n<think>\n{}</think>{}",
    "<think>a<think>b</think>{}</think>{}",
    "<think>{}</think></think>{}",
    "<thinking>{}</thinking>{}",
    "<gui_think>{}</gui_think>\n{}",
    "<seed:think>{}</seed:think>{}",
    "◁think▷{}◁/think▷{}",
    "[THINK]{}[/THINK]{}",
    "<|begin_of_thought|>{}<|end_of_thought|>{}",
    "<|START_THINKING|>{}<|END_THINKING|>{}",
    "<|channel>thought\n{}<channel|>{}",
    "<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>{}",
    "<think>I write <tool_call> or Action: or ```python first. {}</think>\n{}",
]
OPENINGS = ["<think>{}", "<gui_think>{}", "◁think▷{}", "<|channel>thought\n{}", "<|channel|>analysis<|message|>{}"]
TEXTS = [name for base in formats() for name in (base, *(f"{base}:{one}" for one in variants(base)))]
TEXTS = [name for name in TEXTS if name.partition(":")[0] not in ("openai", "anthropic", "gemini")]


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_thought_is_never_done(name):
    thought, done = thoughts(name)
    whole = get_format(name).parse(done, SPACE).actions
    for mark in MARKS:
        found = get_format(name).parse(mark.replace("{}", thought, 1).replace("{}", done, 1), SPACE)
        assert (found.actions, found.errors) == (whole, ()), mark
        assert found.thought
    for field in ("reasoning_content", "reasoning"):
        assert get_format(name).parse({"content": done, field: thought}, SPACE).actions == whole
    for opening in OPENINGS:
        found = get_format(name).parse(done + "\n" + opening.replace("{}", thought), SPACE)
        assert not found.actions
        assert isinstance(found.errors[0], EndedWhileThinking), opening


@pytest.mark.parametrize("name", TEXTS)
def test_ten_megabytes_are_refused_at_once(name):
    for text in (
        "<think>" + "a" * 10_000_000,
        "Action: wait()\n" * 700_000,
        b"x" * 10_000_000,
        {"content": "a" * 10_000_000},
    ):
        started = time.thread_time()
        found = get_format(name).parse(text, SPACE)
        assert not found.actions
        assert "at most" in found.problem
        assert time.thread_time() - started < 0.2


def test_a_screen_that_no_model_can_see_is_an_error_value():
    for name in TEXTS:
        found = get_format(name).parse("Action: wait()", (100_000, 10))
        assert found.errors or found.actions
    assert "aspect" in get_format("ui_tars").parse("Action: wait()", (100_000, 10)).problem


def test_the_page_names_the_fields_that_there_are():
    page = (Path(__file__).parents[3] / "docs" / "reference" / "formats.md").read_text(encoding="utf-8")
    assert f"ParsedResponse({', '.join(field.name for field in fields(ParsedResponse))})" in page


def test_places_of_errors_are_those_of_the_whole_response():
    text = "<think>\nI jump.\n</think>\nThought: x\nAction: jump()"
    (error,) = get_format("ui_tars").parse(text, SPACE).errors
    assert text[slice(*error.span)] == "jump()"


@pytest.mark.parametrize(
    "text",
    [
        "<think>I jump.</think>\n<answer>\nThought: x\nAction: jump()\n</answer>",
        "<answer>Thought: x<think>y</think>\nAction: jump()</answer><|im_end|>",
        "<response>Action: jump()",
        "Action: jump()</response>",
    ],
)
def test_marks_around_an_answer_are_taken_off_and_places_stay(text):
    parsed = get_format("ui_tars").parse(text, SPACE)
    (error,) = parsed.errors
    assert text[slice(*error.span)] == "jump()"
    assert "answer" not in parsed.thought
