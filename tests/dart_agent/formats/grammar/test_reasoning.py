"""Reasoning and answer: what each mark of each family parts, and that it takes time in proportion to the length."""

import time

import pytest

from dart_agent.formats.grammar.reasoning import message_text, opened_by, split_reasoning
from dart_agent.grounding.text_grounder import point_of
from dart_agent.models.coordinates import CoordinateSpace
from dart_agent.presets import get_preset
from dart_agent.presets.preset import presets


@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        ("plain", "", "plain"),
        ("<think>a</think>b", "a", "b"),
        ("a</think>b", "a", "b"),
        ("<think>\n\n</think>\n\nb", "", "\n\nb"),
        ("<think/>b", "", "b"),
        ("<think>a</think>b<think>c</think>d", "a\nc", "b\nd"),
        ("<think><think>a</think>b", "a", "b"),
        ("<think>a<think>b</think>c</think>d", "abc", "d"),
        ("<think>a</think>b</think>c", "ab", "c"),
        ("x<think>a</think>", "a", "x"),
        ("< Think >a</ THINK >b", "a", "b"),
        ("<function.think>a</function.think>b", "a", "b"),  # begins like a tag of calls, and is none
        ("<point-thought>a</point-thought>b", "a", "b"),
        ("[tHiNk]a[/tHiNk]b<tool_call>", "a", "b<tool_call>"),
        ('<thinking mode="deep">a</thinking>b', "a", "b"),
        ("<seed:think>a</seed:think>b", "a", "b"),
        ("◁think▷a◁/think▷b", "a", "b"),
        ("<|channel>thought\na<channel|>b", "a", "b"),
        ("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b<|return|>", "a", "b"),
        ("a<|end|><|start|>assistant<|channel|>final<|message|>b", "a", "b"),
        ("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|message|>b<|return|>", "a", "b"),
        ("type(content='<|channel|>analysis<|message|>a')", "", "type(content='<|channel|>analysis<|message|>a')"),
        ("<|channel|>commentary<|message|>a<|end|><|channel|>final<|message|>b", "a", "b"),
        ('<|channel|>commentary to=functions.x <|constrain|>json<|message|>{"b": 1}<|call|>', "", '{"b": 1}'),
        ("analysisA thought.assistantfinalb", "A thought.", "b"),
        ("Here are my reasoning steps:\na\n[BEGIN FINAL RESPONSE]b[END FINAL RESPONSE]", "a", "b"),
        ("a\n[BEGIN FINAL RESPONSE]b", "a", "b"),
        ("type(content='[BEGIN FINAL RESPONSE]')", "", "type(content='[BEGIN FINAL RESPONSE]')"),
        ("Here is my thought process:\na\nHere is my response:b", "a", "b"),
        ("Here's my thought process: a Here's my response:b", "a", "b"),
        ("Here is my response: b", "", "Here is my response: b"),
        ("analysis of the screen: b", "", "analysis of the screen: b"),
        ("I think <b>so</b>", "", "I think <b>so</b>"),
        ("type(content='<think>')", "", "type(content='<think>')"),
        ('{"text": "a </think> b"}', "", '{"text": "a </think> b"}'),
    ],
)
def test_parts(text, reasoning, answer):
    split = split_reasoning(text)
    assert (split.reasoning, split.answer, split.unfinished) == (reasoning, answer, None)


@pytest.mark.parametrize(
    "text",
    [
        "<think>a",
        "<think>a <think>b</think> c",
        "done<think>a",
        "◁think▷a",
        "<|channel>thought\na",
        "<|channel|>analysis<|message|>a",
        "analysisWe look",
        "Here are my reasoning steps:\na",
        " Here's my thought process: a",
    ],
)
def test_what_ends_inside_a_thought(text):
    split = split_reasoning(text)
    assert split.unfinished
    assert text[slice(*split.unfinished)].strip()


MARKS = [
    ("<reason>", "</reason>"),
    ("<cot>", "</cot>"),
    ("<plan>", "</plan>"),
    ("<chain_of_thought>", "</chain_of_thought>"),
    ("<internal_thought>", "</internal_thought>"),
    ("<reasoning_content>", "</reasoning_content>"),
    ("<antThinking>", "</antThinking>"),
    ("＜think＞", "＜／think＞"),
    ("＜think＞", "＜/think＞"),
    ("&lt;think&gt;", "&lt;/think&gt;"),
    ("<|think|>", "<|/think|>"),
    ("<|thinking|>", "<|/thinking|>"),
    ("<｜think｜>", "<｜/think｜>"),
    ("<|begin_of_think|>", "<|end_of_think|>"),
    ("<｜begin▁of▁thinking｜>", "<｜end▁of▁thinking｜>"),
    ("<|start_thinking|>", "<|end_thinking|>"),
    ("<begin_thought>", "<end_thought>"),
    ("<unused94>thought\n", "<unused95>"),
    ("<|im_start|>think\n", "<|im_start|>answer"),
    ("[think]", "[/think]"),
    ("[THINKING]", "[/THINKING]"),
    ("[REASONING]", "[/REASONING]"),
    ("[Thought]", "[/Thought]"),
    ("<reflect>", "</reflect>"),
    ("<self-reflection>", "</self-reflection>"),
    ("<inner-monologue>", "</inner-monologue>"),
    ("<rationale>", "</rationale>"),
    ("<critique>", "</critique>"),
    ("<brainstorm>", "</brainstorm>"),
    ("<seed:cot_budget_reflect>", "</seed:cot_budget_reflect>"),
    ("<思考>", "</思考>"),
    ("<chain-of-thought>", "</chain-of-thought>"),
    ("<scratch_pad>", "</scratch_pad>"),
    ("<deliberate>", "</deliberate>"),
    ("<|reasoning_start|>", "<|reasoning_end|>"),
    ("<think_start>", "<think_end>"),
    ("<|begin-of-thought|>", "<|end-of-thought|>"),
    ("<start-thinking>", "<stop-thinking>"),
    ("<ctrl94>thought\n", "<ctrl95>"),
    ("[BEGIN THINKING]", "[END THINKING]"),
    ("[Start thought]", "[Stop thought]"),
    ("<|think|>", "<|begin|>assistant<|content|>"),
    ("<think>", "<\\think>"),
    ("<推理>", "</推理>"),
    ("<分析过程>", "</分析过程>"),
    ("<思维链>", "</思维链>"),
    ("<反思>", "</反思>"),
]


@pytest.mark.parametrize(("opening", "closing"), MARKS)
def test_marks_of_rarer_models(opening, closing):
    assert split_reasoning(f"{opening}a{closing}b")[:2] == ("a", "b")
    assert split_reasoning(f"a{closing}b")[:2] == ("a", "b"), "the prompt opened it"
    assert split_reasoning(f"c{opening}a{closing}b")[:2] == ("a", "c\nb")
    assert split_reasoning(f"{opening}a").unfinished
    typed = f"type(content='{opening.strip()}')"
    assert split_reasoning(typed).answer == typed


PAIRED = [
    ('<details type="reasoning" done="true" duration="3">\n<summary>Thought for 3 seconds</summary>\n', "</details>"),
    ("<details><summary>Thinking</summary>", "</details>"),
    ("<DETAILS open><summary>My reasoning</summary>", "</Details>"),
    ("<!-- thinking: ", "-->"),
    ("```thinking\n", "\n```\n"),
    ("~~~ Thought\n", "\n~~~\n"),
    ("<explanation>", "</explanation>"),
    ("<consider>", "</consider>"),
    ("<draft>", "</draft>"),
    ("<evaluation_previous_goal>", "</evaluation_previous_goal>"),
]
"""Marks that open a thought by themselves; those that are a word in brackets do only where the thought is closed."""


@pytest.mark.parametrize(("opening", "closing"), PAIRED)
def test_thoughts_between_a_pair_of_marks(opening, closing):
    split = split_reasoning(f"{opening}a <tool_call> {closing}b")
    assert "a <tool_call>" in split.reasoning and split.answer.strip() == "b"
    assert split_reasoning(f"c\n{opening}a{closing}b").answer.split() == ["c", "b"]
    nested = split_reasoning(f"<think>{opening}a{closing}c</think>b")
    assert nested.answer == "b" and nested.unfinished is None
    unclosed = split_reasoning(f"{opening}a")
    is_a_word = opening[1:].partition(">")[0] in ("explanation", "consider", "draft", "evaluation_previous_goal")
    assert bool(unclosed.unfinished) is not is_a_word
    typed = "type(content='" + opening.strip().replace("\n", " ") + "')"
    assert split_reasoning(typed).answer == typed


def test_a_block_in_a_thought_does_not_end_it():
    text = "```thinking\nMaybe\n```python\nagent.done()\n```\nb"
    assert "agent.done" not in split_reasoning(text).answer


HEADINGS = [
    ("**Thinking:**", "**Answer:**"),
    ("**Thought**:", "**Response**:"),
    ("__Reasoning:__", "__Final answer:__"),
    ("## Thinking\n", "## Answer\n"),
    ("# Thought process:\n", "# Final Answer:\n"),
    ("### **My reasoning**\n", "### **Tool call**\n"),
    ("\n**Analysis:**", "**Decision:**"),
]


@pytest.mark.parametrize(("thought", "answer"), HEADINGS)
def test_what_stands_under_a_heading_of_thoughts_is_not_done(thought, answer):
    text = f"{thought} I could <tool_call>\n```python\n# Answer\nagent.done()\n```\nbut no.\n\n{answer} b"
    split = split_reasoning(text)
    assert "<tool_call>" in split.reasoning and "agent.done()" in split.reasoning and split.answer.strip() == "b"
    assert text[split.place((split.answer.index("b"),) * 2)[0]] == "b"


def test_a_heading_of_actions_belongs_to_the_answer():
    split = split_reasoning("**Thought:** maybe\nAction: click(1)\n\n**Action:** click(2)")
    assert split[:2] == ("**Thought:** maybe\nAction: click(1)", "**Action:** click(2)")


@pytest.mark.parametrize(
    "text",
    [
        "**Thinking:** b",  # nothing follows it: what it holds may be all there is
        "## Thinking\nb\n```python\n# Action\nagent.done()\n```",
        "b\n**Thinking:** c\n**Answer:** d",
        "**Answer:** b",
        "## Thinking about it\nb\n## Answer\nc",
        "**Thinking:** b **Answer:** c",
        "type(content='\n**Thinking:** a\n**Answer:** b')",
    ],
)
def test_headings_that_part_nothing(text):
    assert split_reasoning(text)[:2] == ("", text)


@pytest.mark.parametrize(
    "text",
    [
        "the plan: b",
        "an <explanation> element",
        "<details><summary>Prices</summary>b</details>",
        "<!-- a comment -->b",
        "```python\nthink()\n```",
        "```thinkpad\nb\n```",
        "a < b and b > c",
        "<planet>",
        "<reasonable>",
        "[king]",
        "<critiques>",
        "[reasoning about it]",
        "x = 'a' &lt; b",
        "a|b",
    ],
)
def test_words_and_tags_that_are_no_marks(text):
    assert split_reasoning(text)[:2] == ("", text)


def test_places_in_the_answer_are_places_in_the_response():
    text = "<think>a</think>bcd<think>e</think>fgh"
    split = split_reasoning(text)
    for letter in "bcdfgh":
        place = split.answer.index(letter)
        start, end = split.place((place, place + 1))
        assert text[start:end] == letter


def test_presets_that_open_a_thought_are_known():
    opened = {name for name, preset in presets().items() if preset.layout and opened_by(preset.layout.reply)}
    assert opened == {"qwen3-vl-thinking"}
    assert get_preset("qwen3.5").layout.reply.startswith("<think>"), "it closes it, too"


def test_messages():
    assert message_text({"content": "b"}) == "b"
    assert split_reasoning(message_text({"content": "b", "reasoning": "a </think> c"})).answer.strip() == "b"
    assert split_reasoning(message_text({"content": "", "reasoning_content": "a"})).unfinished
    assert message_text({"content": None}) == message_text({}) == message_text({"content": 3}) == ""
    details = {"content": "b", "reasoning_details": [{"type": "reasoning.text", "text": "a"}]}
    assert split_reasoning(message_text(details)).reasoning == "a"


@pytest.mark.parametrize(
    "message",
    [
        {"content": [{"type": "reasoning", "text": "a"}, {"type": "text", "text": "b"}]},
        {"content": [{"type": "thinking", "thinking": "a"}, {"type": "text", "text": "b"}]},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "a"}]}, {"type": "text", "text": "b"}]},
        {"content": [{"type": "thought", "content": "a"}, {"type": "output_text", "text": "b"}]},
        {"content": [{"text": "a", "thought": True}, {"text": "b"}]},
        {"content": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}]}, {"text": "b"}]},
        {"content": "b", "thinking": "a"},
        {"content": "b", "reasoning": {"content": "a"}},
        {"content": "b", "thinking_blocks": [{"type": "thinking", "thinking": "a", "signature": "x"}]},
        {"content": "b", "reasoning_text": "a", "reasoning_content": ""},
    ],
)
def test_parts_and_fields_that_hold_thoughts(message):
    split = split_reasoning(message_text(message))
    assert (split.reasoning, split.answer.strip()) == ("a", "b")
    alone = {**message, "content": message["content"][:1] if isinstance(message["content"], list) else ""}
    assert split_reasoning(message_text(alone)).unfinished, "reasoning alone is no answer"


def test_a_grounder_points_at_what_it_answers_not_at_what_it_thinks_of():
    space = CoordinateSpace((100, 100), (100, 100))
    assert point_of("<think>maybe (1, 2)</think>(30, 40)", space) == (30, 40)
    assert point_of("maybe (1, 2)</think>(30, 40)", space) == (30, 40)
    assert point_of("<think>maybe (1, 2)", space) is None
    assert point_of("(30, 40)", space) == (30, 40)


UNITS = [
    "<",
    "<think>",
    "</think>",
    "<think>a</think>b",
    "a='",
    "<|channel|>a",
    "<|start|>",
    "think",
    "◁",
    "<parameter=a>",
    "<|begin_of_",
    "&lt;reason_",
    "＜plan a=",
    "<draft>",
    "<draft></explain>",
    "```thinking\n",
    "\n```thinking\n```",
    "<!--think ",
    "<details",
    "<details><summary>",
    "## Thinking\n",
    "**Thinking:**",
    "## Thinking\n## Answer\n",
    "## Thinking\n```\n# Answer\n",
]


@pytest.mark.parametrize("unit", UNITS)
def test_the_time_is_linear(unit):
    text = unit * (240_000 // len(unit)) + ("" if unit[0] in "#*" else "<think>")
    best = min(_seconds(text) for _ in range(3))
    assert best < 1.0  # 0.2 s on a slow machine; the square of the length would be a minute


def _seconds(text: str) -> float:
    started = time.thread_time()
    split_reasoning(text)
    return time.thread_time() - started
