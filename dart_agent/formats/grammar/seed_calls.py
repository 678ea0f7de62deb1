"""Calls in tags: those of Doubao-Seed's newer models, and of Qwen3.5 within `<tool_call>`.

    <seed:tool_call><function=click><parameter=point><point>1 2</point></parameter></function></seed:tool_call>
    <seed:tool_call><function name="wait"><parameter name="time" string="true">2</parameter></function></seed:tool_call>

Both spellings are read. Values are taken as they are: there are no quotes, and nothing is escaped.
"""

import re

from dart_agent.formats.grammar.action_format import MAX_ACTIONS, UnreadableError
from dart_agent.formats.grammar.calls import MAX_ARGUMENTS, Call

OPENING = "<seed:tool_call>"
_FUNCTION = re.compile(r'<function(?:=|\s{1,4}name=")([A-Za-z_]\w{0,40})"?>')
_PARAMETER = re.compile(r'<parameter(?:=|\s{1,4}name=")([A-Za-z_]\w{0,40})"?(?:\s{1,4}string="(?:true|false)")?>')


def read_seed_calls(text: str) -> tuple[str, list[Call]]:
    """Thought and calls of a text that has the opening tag. Raises `UnreadableError`."""
    start = text.index(OPENING)
    calls = read_tag_calls(text, start)
    if not calls:
        raise UnreadableError(f"there is no <function=...> after {OPENING}", (start, len(text)))
    return text[:start].strip(), calls


def read_tag_calls(text: str, position: int = 0) -> list[Call]:
    """The calls in tags from a place on, in order, maybe empty. Raises `UnreadableError`."""
    calls: list[Call] = []
    while function := _FUNCTION.search(text, position):
        end = text.find("</function>", function.end())
        if end < 0:
            raise UnreadableError(f"{function[1]}: </function> is missing", (function.start(), len(text)))
        if len(calls) == MAX_ACTIONS:
            raise UnreadableError(f"more than {MAX_ACTIONS} actions in one response", (function.start(), len(text)))
        position = end + len("</function>")
        span = (function.start(), position)
        calls.append(Call(function[1], _arguments(text, function.end(), end, span), span))
    return calls


def _arguments(text: str, position: int, stop: int, span: tuple[int, int]) -> dict[str, str]:
    found: dict[str, str] = {}
    while parameter := _PARAMETER.search(text, position, stop):
        end = text.find("</parameter>", parameter.end(), stop)
        if end < 0 or parameter[1] in found or len(found) == MAX_ARGUMENTS:
            raise UnreadableError(f"{parameter[1]}: </parameter> is missing, or it is given twice", span)
        found[parameter[1]] = text[parameter.end() : end]
        position = end + len("</parameter>")
    return found
