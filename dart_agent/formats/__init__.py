"""Action formats: how models of each family write actions. `get(name)` finds one."""

from __future__ import annotations

from dart_agent.formats.format_registry import formats, get, variants
from dart_agent.formats.grammar.action_format import (
    ActionFormat,
    InexpressibleError,
    ParsedResponse,
    ParseError,
    Response,
    Screen,
    ToolFormat,
)

get_format = get
"""The same under its first name."""

__all__ = [
    "ActionFormat",
    "InexpressibleError",
    "ParseError",
    "ParsedResponse",
    "Response",
    "Screen",
    "ToolFormat",
    "formats",
    "get",
    "get_format",
    "variants",
]
