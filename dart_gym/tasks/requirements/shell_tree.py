"""The tree of a shell line: words, commands and scripts. `shell_syntax` makes it, `shell_programs` follows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

Part: TypeAlias = tuple[str, str]
"""("text", characters), ("variable", name), or ("unknown", "") for what only a running shell knows."""


@dataclass(slots=True, eq=False)
class Word:
    """One word; `plain` if nothing of it is quoted or expanded, so that it may be a keyword."""

    parts: list[Part] = field(default_factory=list)
    scripts: list[Script] = field(default_factory=list)  # of its command substitutions
    plain: bool = True

    def text(self, variables: dict[str, str]) -> str | None:
        """Return its text, given the values of variables; None where it is not known."""
        found = []
        for kind, value in self.parts:
            if kind == "unknown" or (kind == "variable" and value not in variables):
                return None
            found.append(variables[value] if kind == "variable" else value)
        return "".join(found)

    @property
    def keyword(self) -> str:
        """Its text where it may be a keyword, else ""."""
        return "".join(value for _, value in self.parts) if self.plain else ""


@dataclass(slots=True)
class Simple:
    """A program or builtin with its arguments; `input` is a here-document that it reads, `negated` stands for a `!`."""

    words: list[Word]
    scripts: list[Script] = field(default_factory=list)  # of redirections and here-documents
    input: str | None = None
    negated: bool = False


@dataclass(slots=True)
class Compound:
    """A loop, a case, a group or a subshell: all its parts may run."""

    parts: list[Script]


@dataclass(slots=True)
class If:
    """Conditions with what each leads to, and the last part."""

    arms: list[tuple[Script, Script]]
    otherwise: Script | None = None


@dataclass(slots=True)
class Function:
    """The definition of a function."""

    name: str
    body: Script


Command: TypeAlias = Simple | Compound | If | Function


@dataclass(slots=True)
class Script:
    """Lists of pipelines, each with the operator before it: "", "&&" or "||"."""

    lists: list[list[tuple[str, list[Command]]]] = field(default_factory=list)
