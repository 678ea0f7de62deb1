"""Reasoning and answer of a response: the one place that knows how model families mark what they only think.

| family | mark |
|---|---|
| Qwen, GLM, DeepSeek, Holo, MiMo, Step | `<think> ... </think>`, also `<thinking>`, `<thought>`, `<reasoning>` |
| UI-TARS-2, Doubao-Seed, Seed-OSS | `<gui_think>`, `<seed:think>`, `<think_never_used_...>` |
| Kimi-VL and OpenCUA | `◁think▷ ... ◁/think▷` |
| Gemma 4 | `<|channel>thought ... <channel|>` |
| gpt-oss (harmony) | `<|channel|>analysis<|message|> ... <|channel|>final<|message|> ...` |
| others | `[THINK]`, `<|begin_of_thought|>`, `<|START_THINKING|>`, `<|thinking|>`, `<unused94>thought`, `<plan>` |
| pages of chats | `<details type="reasoning">`, a fence of the language `thinking`, `<!-- thinking ... -->` |
| prompts | `<explanation> ... </explanation>` and other words, only where the closing mark follows |
| Apriel, Granite | `Here are my reasoning steps: ... [BEGIN FINAL RESPONSE]`, `Here is my thought process: ...` |
| headings in Markdown | `**Thinking:** ... **Answer:** ...`, `## Reasoning ... ## Answer ...`, where both stand |
| a server's reasoning parser | fields of a message such as `reasoning_content`: see `message_text` |

Invariants:
    - Text between marks is never part of the answer, regardless of its words: `<tool_call>`, `Action:`, code.
    - Where it is doubtful whether a text was thought, it was. A closing mark that nothing opens ends a thought that
      began with the response (the prompt opened it). Thoughts nest; an opening mark directly after another counts once.
    - A mark within a quoted argument of a call (`type(content='<think>')`) is a text to type, not a mark.
    - The time is linear in the length of the response.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

_NAME = (
    r"(?:[\w:.-]{0,20}think(?:ing)?\w{0,60}"
    r"|(?:[\w-]{1,20}[_-])?(?:thoughts?|reason(?:ing)?|reflect(?:ions?)?|analysis|rationale|monologue|critique"
    r"|deliberat(?:e|ion))(?:[_-]\w{1,20})?|(?:seed:)?cot(?:_\w{1,30})?|plan(?:ning)?|scratch[_-]?pad"
    r"|brainstorm(?:ing)?|introspection|(?:思考|推理|分析|反思)(?:过程)?|思维链?|(?:inner|internal)[_-]\w{0,20})"
)
_LEFT, _RIGHT = r"(?:<[|｜]?|＜|&lt;)\s?", r"(?:[|｜]?>|＞|&gt;)"
_OF_A_THOUGHT = rf"[_-]?[\w▁-]{{0,10}}(?:think|thought|reason)\w{{0,20}}{_RIGHT}"
_IN_BRACKETS = "(?:think(?:ing)?|reasoning|thoughts?)"
_UNUSED = "(?:unused|ctrl)"
_MARK = re.compile(
    rf"(?!<<)(?:(?P<other>◁think▷|\[(?:(?:BEGIN|START)[ _])?{_IN_BRACKETS}\]"
    rf"|{_LEFT}(?:begin|start){_OF_A_THOUGHT}|<\|channel>[ \t]*(?:thought)?"
    rf"|<{_UNUSED}94>thought|<\|im_start\|>\s?think\w{{0,6}})"
    rf"|◁/think▷|\[(?:/|END[ _]|STOP[ _]){_IN_BRACKETS}\]|<\|begin\|>\s?assistant<\|content\|>"
    rf"|{_LEFT}(?:end|stop|close){_OF_A_THOUGHT}|<channel\|>|<{_UNUSED}95>|<\|im_start\|>\s?answer"
    rf"|{_LEFT}(?P<end>[/／\\]?)\s?(?P<name>{_NAME})(?:\s[\w-]{{1,20}}=[^<>\n]{{0,80}})?\s?(?P<empty>/?){_RIGHT})",
    re.IGNORECASE,
)
_MARK_BEGINS = re.compile(r"[<＜&◁\[](?!/?(?:(?:seed:)?tool_call|function|parameter|point)[\s=>])")
"""With which every mark begins: looking for it, and for a mark there, is faster than looking for marks."""
_STEMS = (
    *("think", "thought", "reason", "reflect", "analysis", "rationale", "monologue", "critique", "deliberat", "cot"),
    *("plan", "scratch", "brainstorm", "introspection", "inner", "internal"),
    *("channel", "unused", "ctrl", "im_start", "begin"),
)
"""Every mark of `_MARK` in ASCII holds one of these: looking for them is faster than looking for marks."""
_TAG_NAMES = re.compile(r"<(/?[\w:.-]*)")
_OF_CALLS = frozenset(
    f"{end}{name}" for name in ("tool_call", "seed:tool_call", "function", "parameter", "point") for end in ("", "/")
)
_ELEMENTS = (
    "consider|considerations?|draft|verify|verification|explain|explanation|strategy|hypothesis|backtrack|observation"
    "|step_by_step|evaluation_previous_goal|hidden|assessment|self_check"
)
_FENCE = re.compile(rf"^(```|~~~)[ \t]?{_IN_BRACKETS}\b[^\n`]{{0,40}}\n", re.IGNORECASE | re.MULTILINE)
_PAIRED = re.compile(
    rf"(?P<fence>{_FENCE.pattern})"
    r"|<(?P<details>details)(?:[^<>]{0,80}type=\W?(?:reason|think|thought)[^<>]{0,80}>"
    r"|[^<>]{0,80}>\s{0,8}<summary>[^<>]{0,40}(?:think|thought|reason)[^<>]{0,40}</summary>)"
    rf"|<(?P<comment>!--)\s{{0,4}}{_IN_BRACKETS}\b"
    rf"|<(?P<element>{_ELEMENTS})>",
    re.IGNORECASE | re.MULTILINE,
)
"""What holds a thought up to a closing mark of its own kind, and does not nest."""
_PAIR_STEMS = (
    *("```", "~~~", "<details", "<!--", "<consider", "<draft", "<verif", "<expla", "<strategy", "<hypothesis"),
    *("<backtrack", "<observation", "<step_by_step", "<evaluation_", "<hidden", "<assessment", "<self_check"),
)
"""Every opening of `_PAIRED` in ASCII holds one of these."""
_CHANNEL = re.compile(
    r"(?:<\|start\|>[^<]{0,80})?<\|channel\|>\s{0,4}([A-Za-z]{1,20})((?:[^<\n]{0,80}(?:<\|constrain\|>[^<\n]{0,40})?"
    r"<\|message\|>)?)|<\|start\|>\s?assistant\s?<\|message\|>"
)
_CHANNEL_END = re.compile(r"<\|(?:end|return|call)\|>")
_PHRASES = (
    (("Here are my reasoning steps:",), ("[BEGIN FINAL RESPONSE]",)),
    (("Here is my thought process:", "Here's my thought process:"), ("Here is my response:", "Here's my response:")),
)
"""Words that begin a thought at the start of a response, and words that the answer follows."""
_BOLD = r"(?:\*\*|__)"
_END_OF_HEADING = rf"[ \t]*:?{_BOLD}?[ \t]*:?[ \t]*"
_THOUGHT = (
    r"(?:(?:my|the) )?(?:thinking|thoughts?|reasoning|analysis|rationale|reflection|chain[ -]of[ -]thought)"
    r"(?: process| steps)?"
)
_HEADS_THOUGHT = re.compile(
    rf"\s*(?:#{{1,6}}[ \t]*{_BOLD}?{_THOUGHT}{_END_OF_HEADING}\n|{_BOLD}{_THOUGHT}[ \t]*:?{_BOLD})", re.IGNORECASE
)
_HEADS_ANSWER = re.compile(
    rf"^[ \t]*(?:#{{1,6}}[ \t]*{_BOLD}?|{_BOLD})(?:(?:my|the) )?(?:final |next )?"
    rf"(?:(?P<action>actions?|code)|answer|response|output|decision|tool[ -]calls?)(?:{_BOLD}|[ \t]*:|[ \t]*$)"
    rf"{_END_OF_HEADING}",
    re.IGNORECASE | re.MULTILINE,
)
"""Headings in Markdown. What `action` names is part of the answer: formats have such a word of their own."""
_FINAL, _FINAL_END = "[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]"
_STRIPPED = re.compile(r"analysis(?=[A-Z])")  # harmony after its special tokens were dropped
_QUOTED = re.compile(  # an argument of a call, a field of a JSON object, the first argument of a call; in one line
    r"(?:\b[A-Za-z_]\w{0,40}\s?=\s?|\w\(\s?)'(?>(?:[^'\\\n]++|\\.|'(?!\s?[,)]))*)'"
    r"|(?:\b[A-Za-z_]\w{0,40}\s?=\s?|\w\(\s?)\"(?>(?:[^\"\\\n]++|\\.|\"(?!\s?[,)]))*)\""
    r"|\"[A-Za-z_]\w{0,40}\"\s?:\s?\"(?>(?:[^\"\\\n]++|\\.)*)\""
)
_WINDOW = 1000  # characters on either side of a mark in which the quotes around it are looked for
_QUOTE_CHECKS = 16
_WORD_IN_BRACKETS = re.compile(r"\](?<=[A-Za-z]\])")
_IN_SQUARE_BRACKETS = ("hink]", "king]", "ning]", "ught]", "ghts]", _FINAL.lower())
"""With which every mark in square brackets ends, in whatever case."""
SPECIAL_TOKEN = r"(?:<[|｜][A-Za-z_▁]{1,40}[|｜]>|<end_of_turn>|<turn\|>|<eos>|\[EOS\]|</s>)"
"""Expression of a token that ends a text, or stands around an answer."""
_WRAPPED = r"(?:answer|response)"
_WRAPPER = re.compile(rf"\s*(?:<{_WRAPPED}>|<\|START_(?:RESPONSE|TEXT)\|>)\s*", re.IGNORECASE)
_WRAPPER_END = re.compile(
    rf"\s*(?:</{_WRAPPED}>|<\|END_(?:RESPONSE|TEXT)\|>)(?:\s|{SPECIAL_TOKEN}){{0,8}}\Z", re.IGNORECASE
)
_WRAPPER_STEMS = ("answer", "response", "_text|>")
"""Every mark of `_WRAPPER` and `_WRAPPER_END` holds one of these."""
_LONGEST_END = 200
_BEGINNINGS = ("analysis", *(opening for openings, _ in _PHRASES for opening in openings))
_THOUGHTS_APART = (
    "reasoning_content", "reasoning", "reasoning_details", "reasoning_text", "thinking", "thinking_blocks", "thoughts",
)  # fmt: skip
"""Fields of a message in which servers put what was thought."""
MESSAGE_FIELDS = frozenset(("content", *_THOUGHTS_APART))
"""A chat message has at least one of these."""
_KINDS_OF_THOUGHT = ("think", "thought", "reason")
_TEXTS = ("text", "thinking", "reasoning", "content", "summary")
_OPEN, _CLOSE = "<think>\n", "\n</think>\n\n"


class Split(NamedTuple):
    """A response in its two parts.

    Attributes:
        reasoning: all that was thought, without its marks.
        answer: what the model says and does.
        pieces: (place in the answer, place in the response) where each piece of the answer begins.
        unfinished: the place of reasoning that the response ends in; None where it ends in its answer.
    """

    reasoning: str
    answer: str
    pieces: tuple[tuple[int, int], ...] = ((0, 0),)
    unfinished: tuple[int, int] | None = None

    def place(self, span: tuple[int, int]) -> tuple[int, int]:
        """Return where characters of the answer stand in the response."""
        if len(self.pieces) == 1 and self.pieces[0] == (0, 0):
            return span
        start, end = (self._place(position) for position in span)
        return start, max(start, end)

    def _place(self, position: int) -> int:
        found = (0, 0)
        for piece in self.pieces:
            if piece[0] > position:
                break
            found = piece
        return found[1] + position - found[0]


def split_reasoning(text: str) -> Split:
    """Split a response into what was thought and what was answered. Never raises."""
    begins = text[:80].lstrip()
    if not begins.startswith(_BEGINNINGS) and _has_no_marks(text):
        found = Split("", text)
    else:
        found = _at_marks(text, begins)
    if begins.startswith(("#", "*", "_")) and found.answer == text:
        return _headings(text) or found
    return found


def _at_marks(text: str, begins: str) -> Split:
    """Split a response at the marks of its model's family."""
    if found := _phrases(text, begins):
        return found
    if "<|channel|>" in text:
        return _channels(text)
    if text.startswith("analysis") and _STRIPPED.match(text):
        return _stripped_channels(text)
    return _tags(text)


def unwrapped(split: Split) -> Split:
    """Take off the marks around a whole answer: `<answer> ... </answer>`, `<response>`, `<|START_RESPONSE|>`."""
    answer = split.answer
    if "<" not in answer or not _may_hold(answer, _WRAPPER_STEMS):
        return split
    opening = _WRAPPER.match(answer)
    start = opening.end() if opening else 0
    tail = max(start, len(answer) - _LONGEST_END)
    closing = _WRAPPER_END.search(answer, tail)
    if not opening and not closing:
        return split
    pieces = tuple((place - start, whole) for place, whole in split.pieces)
    return split._replace(answer=answer[start : closing.start() if closing else len(answer)], pieces=pieces)


def _has_no_marks(text: str) -> bool:
    """Return whether no mark can be in a text: most have no tags but those of calls and places."""
    if "<" in text and not _OF_CALLS.issuperset(_TAG_NAMES.findall(text)):
        return False
    if "&lt;" in text or (not text.isascii() and ("◁" in text or "＜" in text)):
        return False
    if ("```" in text or "~~~" in text) and _FENCE.search(text):
        return False
    return not (_WORD_IN_BRACKETS.search(text) and any(mark in text.lower() for mark in _IN_SQUARE_BRACKETS))


def _may_hold(text: str, stems: Sequence[str]) -> bool:
    """Return whether a text may have one of some words in ASCII, in whatever case: other letters may be their cases."""
    if not text.isascii():
        return True
    lowered = text.lower()
    for stem in stems:  # noqa: SIM110  # any() of a generator takes twice as long
        if stem in lowered:
            return True
    return False


def opened_by(reply: str) -> str:
    """Return what a prompt writes at the start of every response, where that leaves a thought open; else ""."""
    return reply if split_reasoning(reply).unfinished else ""


def without_marks(text: str) -> str:
    """Return a text without the marks of reasoning."""
    parts, place = [], 0
    for mark in _each_mark(text):
        parts.append(text[place : mark.start()])
        place = mark.end()
    return "".join((*parts, text[place:])) if place else text


def message_text(message: Mapping[str, Any]) -> str:
    """Return a chat message as one text, with the reasoning that a server sent apart between think tags.

    A message that has reasoning and no content ends inside its reasoning.
    """
    content, thought = _content(message.get("content"))
    apart = next((said for name in _THOUGHTS_APART if (said := _text_in(message.get(name)))), "")
    thought = "\n".join(part for part in (without_marks(apart), without_marks(thought)) if part)
    if not thought.strip():
        return content
    return f"{_OPEN}{thought}{_CLOSE}{content}" if content.strip() else f"{_OPEN}{thought}"


def _content(value: Any) -> tuple[str, str]:
    """(what was said, what was thought) of a message's content: a text, or parts with a type each."""
    if isinstance(value, str):
        return value, ""
    said, thought = [], []
    for part in _parts(value):
        kind = str(part.get("type", "")).lower()
        if part.get("thought") is True or any(word in kind for word in _KINDS_OF_THOUGHT):
            thought.append(_text_in(part))
        else:
            said.append(text if isinstance(text := part.get("text"), str) else "")
            thought += [_text_in(part.get(name)) for name in ("thinking", "reasoning")]
    return "".join(said), "".join(thought)


def _text_in(value: Any, depth: int = 0) -> str:
    """The text of a field that holds thoughts: a text itself, parts that hold texts, or an object with one."""
    if isinstance(value, str):
        return value
    if depth > 3:
        return ""
    said = [[_text_in(part.get(name), depth + 1) for name in _TEXTS] for part in _parts(value)]
    return "".join(next(filter(None, texts), "") for texts in said)


def _parts(value: Any) -> list[Mapping[str, Any]]:
    listed: Sequence[Any] = ()
    if isinstance(value, Mapping):
        listed = [value]
    elif isinstance(value, (list, tuple)):
        listed = value
    return [part for part in listed[:256] if isinstance(part, Mapping)]


def _phrases(text: str, begins: str) -> Split | None:
    """Split at the words that parts of a response begin with; None where it has none."""
    if not begins.startswith(_BEGINNINGS) and _FINAL not in text:
        return None
    for openings, closings in _PHRASES:
        opening = next((one for one in openings if begins.startswith(one)), "")
        start = text.find(opening) + len(opening) if opening else 0
        places = [(place, one) for one in closings if (place := text.find(one, start)) >= 0]
        if not opening and (_FINAL not in closings or not places or _Quotes(text).hold(places[0][0])):
            continue
        if not places:
            return Split(text[start:].strip(), "", ((0, len(text)),), (start, len(text)))
        place, closing = min(places)
        stop = text.rfind(_FINAL_END, place) if closing == _FINAL else -1
        return _split(text, [text[start:place]], [(place + len(closing), len(text) if stop < 0 else stop)], None)
    return None


def _headings(text: str) -> Split | None:
    """Split a response that begins with a heading of thoughts at the heading of its answer; None where it lacks one."""
    opening = _HEADS_THOUGHT.match(text)
    if opening is None:
        return None
    found = list[re.Match[str]]()
    fences, place = 0, opening.end()
    for heading in _HEADS_ANSWER.finditer(text, place):
        fences += text.count("```", place, heading.start())
        place = heading.start()
        if fences % 2 == 0:  # else it is a comment in code
            found.append(heading)
    if not found:
        return None
    answer = next((heading for heading in found if not heading["action"]), found[0])
    if answer["action"]:  # as OpenCUA writes, whose earlier responses are shown to it with their headings
        return _split(text, [text[: answer.start()]], [(answer.start(), len(text))], None)
    return _split(text, [text[opening.end() : answer.start()]], [(answer.end(), len(text))], None)


def _tags(text: str) -> Split:
    """Split at opening and closing marks."""
    depth = floor = start = opened = last_opening = 0
    thoughts: list[tuple[int, int]] = []
    pieces: list[tuple[int, int]] = []
    quotes = _Quotes(text)
    marked = False
    for mark in _marks(text):
        if depth == 0 and quotes.hold(mark.start):
            continue
        marked = True
        if mark.kind == "empty":  # <think/> holds nothing
            if depth == 0:
                pieces.append((start, mark.start))
                start = mark.end
            continue
        if mark.kind == "opens":
            if depth == 0:
                pieces.append((start, mark.start))
                opened, depth = mark.end, 1
            elif not _blank(text, last_opening, mark.start):
                depth += 1
            last_opening = mark.end
        elif depth:
            depth -= 1
            if depth == 0:
                thoughts.append((opened, mark.start))
                start = mark.end
        else:  # nothing opened it: the prompt did, so all that came before was thought
            thoughts = []
            pieces = []
            floor = mark.start
            start = mark.end
    if not marked:
        return Split("", text)
    said = [text[begin:end] for begin, end in ((0, floor), *thoughts)]
    if depth:
        said.append(text[opened:])
        return _split(text, said, pieces, (opened, len(text)))
    return _split(text, said, [*pieces, (start, len(text))], None)


class _Mark(NamedTuple):
    start: int
    end: int
    kind: Literal["opens", "closes", "empty"]


def _marks(text: str) -> list[_Mark]:
    """Return the marks of a text in order; what stands between a pair of `_PAIRED` is passed over."""
    pairs = _pairs(text) if _may_hold(text, _PAIR_STEMS) else []
    found = [mark for pair in pairs for mark in pair]
    for match in _each_mark(text) if _may_hold(text, _STEMS) else ():
        kind: Literal["opens", "closes", "empty"] = "closes"
        if match["empty"]:
            kind = "empty"
        elif match["other"] or (match["end"] == "" and not match["name"].lower().endswith(("_end", "-end"))):
            kind = "opens"
        found.append(_Mark(match.start(), match.end(), kind))
    found.sort()
    return found


def _each_mark(text: str) -> Iterator[re.Match[str]]:
    """Yield what `_MARK` finds, in order."""
    end = 0
    while begin := _MARK_BEGINS.search(text, end):
        mark = _MARK.match(text, begin.start())
        end = begin.end() if mark is None else mark.end()
        if mark is not None:
            yield mark


def _pairs(text: str) -> list[list[_Mark]]:
    """Return opening and closing mark of each thought of `_PAIRED`; no closing one where the response ends in it."""
    found: list[list[_Mark]] = []
    quotes, until = _Quotes(text), 0
    without_end = set[str]()
    for opening in _PAIRED.finditer(text):
        if opening.start() < until or quotes.hold(opening.start()):
            continue
        if opening["fence"]:
            closing = rf"\n{opening[2]}[ \t]*(?=\n|\Z)"
        elif opening["comment"]:
            closing = "-->"
        else:
            closing = f"</{(opening['details'] or opening['element']).lower()}>"
        end = None if closing in without_end else re.compile(closing, re.IGNORECASE).search(text, opening.end() - 1)
        if end is not None:
            until = end.end()
            found.append([_Mark(*opening.span(), "opens"), _Mark(*end.span(), "closes")])
        elif opening["element"]:
            without_end.add(closing)  # a word about an element, not a thought
        else:
            return [*found, [_Mark(*opening.span(), "opens")]]
    return found


def _split(text: str, said: list[str], pieces: list[tuple[int, int]], unfinished: tuple[int, int] | None) -> Split:
    """The parts of a response from its thoughts and the places of its answer."""
    reasoning = "\n".join(part for part in (without_marks(thought).strip() for thought in said) if part)
    kept = [(begin, end) for begin, end in pieces if begin < end and not _blank(text, begin, end)]
    places, position = [], 0
    for begin, end in kept:
        places.append((position, begin))
        position += end - begin + 1
    answer = "\n".join(text[begin:end] for begin, end in kept)
    return Split(reasoning, answer, tuple(places) or ((0, len(text)),), unfinished)


def _channels(text: str) -> Split:
    """Split at the channels of harmony: `final` and calls of tools are the answer, all others are thoughts."""
    heads = _heads(text)
    if not heads:
        return _tags(text)
    said, pieces = [text[: heads[0].start()].removesuffix("<|start|>assistant")], []
    unfinished: tuple[int, int] | None = None
    for index, head in enumerate(heads):
        end = heads[index + 1].start() if index + 1 < len(heads) else len(text)
        closing = _CHANNEL_END.search(text, head.end(), end)
        body = (head.end(), closing.start() if closing else end)
        if _answers(head):
            pieces.append(body)
            unfinished = None
        else:
            said.append(text[slice(*body)])
            unfinished = body if head[1].lower() == "analysis" else None
    return _split(text, [_CHANNEL_END.sub("", thought) for thought in said], pieces, unfinished)


def _heads(text: str) -> list[re.Match[str]]:
    """Return the heads of a text's channels; one within a quoted argument of an answer is a text to type."""
    quotes, thinking = _Quotes(text), False
    found: list[re.Match[str]] = []
    for head in _CHANNEL.finditer(text):
        if thinking or not quotes.hold(head.start()):
            found.append(head)
            thinking = not _answers(head)
    return found


def _answers(head: re.Match[str]) -> bool:
    """Return whether a channel is the answer: `final`, a call of a tool, or a message without a channel."""
    return head[1] is None or head[1].lower() == "final" or "to=" in head[0]


def _stripped_channels(text: str) -> Split:
    """Split harmony without its special tokens, as in `analysisI see it.assistantfinalDone`."""
    head, end = len("analysis"), text.rfind("assistantfinal")
    if end < 0:
        return Split(text[head:].strip(), "", ((0, len(text)),), (head, len(text)))
    return _split(text, [text[head:end]], [(end + len("assistantfinal"), len(text))], None)


def _blank(text: str, start: int, end: int) -> bool:
    return not text[start:end].strip()


class _Quotes:
    """Tells whether a mark stands within a quoted argument; looks at the first few marks only."""

    def __init__(self, text: str) -> None:
        self._text, self._checks = text, 0

    def hold(self, place: int) -> bool:
        """Return whether the mark at a place is a text to type."""
        text = self._text
        self._checks += 1
        if self._checks > _QUOTE_CHECKS:
            return False
        start = text.rfind("\n", max(0, place - _WINDOW), place) + 1 or max(0, place - _WINDOW)
        end = text.find("\n", place, place + _WINDOW)
        line_end = min(len(text), place + _WINDOW) if end < 0 else end
        quoted = text.find("'", start, place) >= 0 or text.find('"', start, place) >= 0
        if quoted and any(found.start() < place < found.end() for found in _QUOTED.finditer(text, start, line_end)):
            return True
        opening = text.rfind("<parameter", max(0, place - _WINDOW), place)
        return opening >= 0 > text.find("</parameter>", opening, place) and text.find("</parameter>", place) >= 0
