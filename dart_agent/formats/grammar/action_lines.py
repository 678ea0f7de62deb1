"""Where the actions of a response in UI-TARS's layout are: after `Action:`, in tags, or bare at its end.

    Thought: I open the menu.
    Action: click(start_box='(1,2)')

A line may also begin with `**Action:**`, `action:`, `## Action:`, `Action：` or `Action 2:`. All actions count, in
order: several calls after one `Action:`, and several lines that begin with it. A line is one only if calls follow to
its end, so prose such as "Action: wait() comes later" belongs to the thought; a call that breaks off is an error.
"""

import re

from dart_agent.formats.grammar.action_format import UnreadableError
from dart_agent.formats.grammar.calls import Call, expected_call, leading_calls
from dart_agent.formats.grammar.reasoning import SPECIAL_TOKEN
from dart_agent.formats.grammar.seed_calls import OPENING, read_seed_calls, read_tag_calls

_LINE = re.compile(
    r"^[ \t>#*_-]{0,8}action(?:[ \t]?\d{1,2})?[ \t*_]{0,4}[:\uff1a][ \t*_`]{0,4}\s*(?:\*\*)?(?:<\|begin_of_box\|>\s*)?",
    re.MULTILINE | re.IGNORECASE,
)
_WITHIN = re.compile(r"Action:\s*(?:<\|begin_of_box\|>\s*)?")
_FENCE = re.compile(r"```\w*\s*")
_THOUGHT = re.compile(r"^[ \t>#*_-]{0,8}thoughts?[ \t*_]{0,4}[:\uff1a][ \t*_]{0,4}\s*", re.IGNORECASE)
_HEADING = re.compile(
    r"[ \t>#*_-]{0,8}(?:thoughts?|reflection|observation|explanation|reasoning|summary|action_summary"
    r"|step[ \t]?\d{1,3})[ \t*_]{0,4}[:\uff1a]",
    re.IGNORECASE,
)
_TOKEN = rf"(?:{SPECIAL_TOKEN}|</answer>|</response>)"
_AFTER = re.compile(rf"(?:\s|```|`|\*\*|{_TOKEN}|[.\u3002](?=\s|$))*")
_ENDINGS = ("```", "`", "**", ".", "\u3002")
_SPECIAL = re.compile(_TOKEN)
_NAME = re.compile(r"([A-Za-z_]{2,20})[ \t]?[(\uff08]")
_BARE_LINE = re.compile(r"^[ \t`]*(?:<\|begin_of_box\|>\s*)?", re.MULTILINE)
_TRIES = 16


def read_actions(text: str, known: frozenset[str]) -> tuple[str, list[Call]]:
    """Return the thought and the calls of an answer.

    Args:
        text: the answer.
        known: names of actions in lower case, for calls without `Action:`.

    Raises:
        UnreadableError: there is no action, or one of several cannot be read.
    """
    place = text.find("Action:")
    if place >= 0 and (place == 0 or text[place - 1] == "\n") and text.find("Action:", place + 7) < 0:
        thought = text[:place]
        if not ("ction" in thought or "CTION" in thought or OPENING in thought):  # the usual layout: one line
            end = len(text) if text[-1] == ")" else _end(text)
            calls, stop = leading_calls(text if end == len(text) else text[:end], place + 7)
            if calls and stop == end:
                plain = thought.startswith("Thought: ")
                return thought[9:].strip() if plain else _thought([thought]), calls
    return _read_slowly(text, known)


def _read_slowly(text: str, known: frozenset[str]) -> tuple[str, list[Call]]:
    first = _LINE.search(text)
    if OPENING in text and not (first and first.start() < text.index(OPENING)):
        return read_seed_calls(text)
    text = text[: _end(text)]
    problem: UnreadableError | None = None
    for marker in (_LINE, _WITHIN):
        found, error = _segments(text, marker, known)
        if found:
            return found
        problem = problem or error
    if problem is None and "<function" in text:
        start = text.index("<function")
        if calls := read_tag_calls(text, start):
            return _thought([text[:start]]), calls
    if problem is None and (bare := _bare(text, known)):
        return bare
    raise problem or UnreadableError(
        "no 'Action:' found; end your response with a line such as: Action: click(start_box='(x,y)')", (0, len(text))
    )


def _segments(
    text: str, marker: re.Pattern[str], known: frozenset[str]
) -> tuple[tuple[str, list[Call]] | None, UnreadableError | None]:
    """Thought and calls after all markers; None, and why, where no marker has any. Raises `UnreadableError`."""
    calls: list[Call] = []
    thought: list[str] = []
    problem: UnreadableError | None = None
    place = searched = tries = 0
    while found := (_WITHIN.match(text, searched) if calls else None) or marker.search(text, searched):
        if tries == _TRIES:
            raise problem or UnreadableError("too many lines that begin with Action:", found.span())
        fence = _FENCE.match(text, found.end())
        start = fence.end() if fence else found.end()
        try:
            some, end = leading_calls(text, start)
        except UnreadableError as error:
            name = _NAME.match(text, start)
            if name and name[1].lower() in known and not _quoted_later(text, marker, found.end()):
                raise
            tries += 1
            searched = found.end()
            problem = problem or error
            continue
        if not some or _goes_on(text, marker, end, some):
            tries, searched = tries + 1, found.end()
            problem = problem or (expected_call(text, end) if end < len(text) else _nothing(end))
            continue
        thought.append(text[place : found.start()])
        calls += some
        place = searched = end = _after(text, end)
        if end < len(text) and not (marker.match(text, end) or _WITHIN.match(text, end) or _HEADING.match(text, end)):
            raise expected_call(text, end)
    if not calls:
        return None, problem
    return (_thought([*thought, text[place:]]), calls), None


def _nothing(place: int) -> UnreadableError:
    return UnreadableError("there is no action after 'Action:'", (place, place))


def _quoted_later(text: str, marker: re.Pattern[str], start: int) -> bool:
    """Return whether another marker follows within the line: then the first was words about actions."""
    end = text.find("\n", start)
    return marker is _WITHIN and marker.search(text, start, len(text) if end < 0 else end) is not None


def _goes_on(text: str, marker: re.Pattern[str], end: int, calls: list[Call]) -> bool:
    """Return whether words follow in the line of the last call: then that line is about actions, and is not one."""
    last = calls[-1].span[1]
    line_end = text.find("\n", last)
    rest = _after(text, last)
    if rest >= (len(text) if line_end < 0 else line_end) or _WITHIN.match(text, rest):
        return False
    later = marker.search(text, rest)
    return later is not None


def _after(text: str, place: int) -> int:
    """The place after the white space, fences and special tokens that follow calls."""
    match = _AFTER.match(text, place)
    end = match.end() if match else place
    line = text.rfind("\n", place, end) + 1  # marks at the start of a line belong to it: **Action:**
    return line if line and text[line:end].strip() and _marked(text, line) else end


def _marked(text: str, line: int) -> bool:
    return bool(_LINE.match(text, line) or _HEADING.match(text, line))


def _bare(text: str, known: frozenset[str]) -> tuple[str, list[Call]] | None:
    """Thought and calls of a text that ends with calls of known actions, each from the start of a line."""
    tries = 0
    for line in _BARE_LINE.finditer(text):
        name = _NAME.match(text, line.end())
        if name is None or name[1].lower() not in known:
            continue
        tries += 1
        if tries > _TRIES:
            return None
        try:
            calls, end = leading_calls(text, line.end())
        except UnreadableError:
            continue
        if calls and end == len(text):
            return _thought([_FENCE.sub("", text[: line.start()])]), calls
    return None


def _thought(parts: list[str]) -> str:
    """The thought without its heading."""
    text = "\n".join(part for part in (part.strip() for part in parts) if part)
    return _THOUGHT.sub("", text).strip()


def _end(text: str) -> int:
    """Where a text ends without the special tokens and code fences at its end."""
    end = len(text.rstrip())
    for _ in range(8):
        if end and (mark := {">": "<", "]": "["}.get(text[end - 1])):
            start = max(text.rfind(mark, max(0, end - 60), end), 0)
            if not _SPECIAL.fullmatch(text, start, end):
                return end
        elif ending := next((one for one in _ENDINGS if text.endswith(one, 0, end)), ""):
            start = end - len(ending)
        else:
            return end
        end = len(text[max(0, start - 2000) : start].rstrip()) + max(0, start - 2000)
    return end
