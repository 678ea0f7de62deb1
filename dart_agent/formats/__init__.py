"""Action formats: how models of each family write actions. `get_format(name)` finds one."""

from dart_agent.formats.format_registry import formats, get_format, variants
from dart_agent.formats.grammar.action_format import (
    ActionFormat,
    EndedWhileThinking,
    InexpressibleError,
    ParsedResponse,
    ParseError,
    Response,
    Screen,
    ToolFormat,
)

__all__ = [
    "ActionFormat",
    "EndedWhileThinking",
    "InexpressibleError",
    "ParseError",
    "ParsedResponse",
    "Response",
    "Screen",
    "ToolFormat",
    "formats",
    "get_format",
    "variants",
]
