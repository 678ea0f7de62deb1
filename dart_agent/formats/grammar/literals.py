"""Python source with calls of literals, through an allow-list over its syntax tree. Nothing is ever run.

    pyautogui.click(100, 200, button="left")   ->   PyCall("pyautogui.click", (100, 200), {"button": "left"}, span)

Only expression statements that call a dotted name with literal arguments are let through, and plain imports of modules
that the caller names. Everything else (assignments, loops, lambdas, f-strings, comprehensions, attributes of values,
starred arguments) is an error with its place.
"""

import ast
import itertools
import re
import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dart_agent.formats.grammar.action_format import MAX_ACTIONS, UnreadableError
from dart_agent.formats.grammar.reasoning import SPECIAL_TOKEN
from dart_gym.core.errors import words_of

# The parser is handed no more than this much code outside of string literals: its time and its stack are bounded.
MAX_CODE = 6_000
MAX_STRING_TOKENS = 400
MAX_BLOCKS = 100_000
_LANGUAGES = frozenset(("", "python", "python3", "py", "code", "tool_code"))
_STRING = re.compile(
    r"#[^\n]*+|'{3}(?:[^\\]|\\(?:.|\Z))*?(?:'{3}|\Z)|\"{3}(?:[^\\]|\\(?:.|\Z))*?(?:\"{3}|\Z)"
    r"|'[^'\\\n]*+(?>(?:\\(?:.|\Z)[^'\\\n]*+)*)'?+|\"[^\"\\\n]*+(?>(?:\\(?:.|\Z)[^\"\\\n]*+)*)\"?+",
    re.DOTALL,
)
"""Comments and strings; those without an end too, or each of many quotes would be followed to the end of the text."""

_FENCE = re.compile(rf"^[ \t]*```[ \t]*+([\w+-]*)[ \t]*(?:{SPECIAL_TOKEN}[ \t]*)?$", re.MULTILINE)
_INLINE = re.compile(r"```(?>(?:python|py|code)?)[ \t]*+\n?+(.*?)```", re.DOTALL)
_SHOWN = 60
_CONSTANTS = (str, int, float, bool, type(None))


@dataclass(frozen=True, slots=True)
class PyCall:
    """A call of a dotted name with literals; `span` is its place in the response."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    span: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of code in a text: from `start` to `end` with its fences, and what is between them."""

    start: int
    end: int
    code: slice


def code_of(text: str, bare: re.Pattern[str] | None = None) -> list[Block]:
    """Where the code of a response is: all closed blocks in order, or the bare calls that it ends with.

    Blocks in another language than Python belong to the thought. Fences stand on lines of their own; without such
    fences, within a line.

    Args:
        text: the answer.
        bare: what a line that is a bare call looks like; None where calls need a block.

    Raises:
        UnreadableError: a block without an end (the response is cut off), or too many blocks.
    """
    opened: re.Match[str] | None = None
    found: list[Block] = []
    for fence in _FENCE.finditer(text):
        if opened is None or fence[1]:
            opened = fence
        else:
            if opened[1].lower() in _LANGUAGES:
                code = slice(min(opened.end() + 1, fence.start()), fence.start())
                found.append(Block(opened.start(), fence.end(), code))
            opened = None
    if opened is not None and text[opened.end() :].strip():
        raise UnreadableError("a code block has no closing ```: is the response cut off?", (opened.start(), len(text)))
    if not found:
        inline = itertools.islice(_INLINE.finditer(text), MAX_ACTIONS + 1)
        found = [Block(one.start(), one.end(), slice(one.start(1), one.end(1))) for one in inline]
    if len(found) > MAX_ACTIONS or sum(block.code.stop - block.code.start for block in found) > MAX_BLOCKS:
        said = f"more than {MAX_ACTIONS} code blocks, or more than {MAX_BLOCKS} characters in them"
        raise UnreadableError(said, (0, len(text)))
    return found or (_bare_block(text, bare) if bare else [])


def _bare_block(text: str, bare: re.Pattern[str]) -> list[Block]:
    """The lines at the end of a text that are calls."""
    start = end = len(text.rstrip())
    while start > 0:
        line = text.rfind("\n", 0, start - 1) + 1
        if text[line:start].strip() and not bare.fullmatch(text[line:start].rstrip()):
            break
        start = line
    return [Block(start, end, slice(start, end))] if text[start:end].strip() else []


def outside(text: str, blocks: Sequence[Block]) -> str:
    """Return what a text says beside its code."""
    parts, place = [], 0
    for block in blocks:
        parts.append(text[place : block.start])
        place = block.end
    return "\n".join(part.strip() for part in (*parts, text[place:]) if part.strip())


def read_calls(code: str, *, imports: Collection[str] = (), offset: int = 0) -> Iterator[PyCall | UnreadableError]:
    """The calls of a piece of source, in order; an error in the place of each other statement.

    Args:
        code: Python source.
        imports: modules whose `import` statements are let through.
        offset: where the source starts in the response.

    Raises:
        UnreadableError: if it is not Python, or more than a model would write.
    """
    tree = parse_source(code, offset)
    starts = _line_starts(code)
    if len(tree.body) > 4 * MAX_ACTIONS:
        raise UnreadableError(f"{len(tree.body)} statements in one response", (offset, offset + len(code)))
    for statement in tree.body:
        span = _span(statement, code, starts, offset)
        if isinstance(statement, ast.Import) and all(name.name in imports for name in statement.names):
            continue
        try:
            yield _call(statement, span)
        except UnreadableError as error:
            yield error


def is_source(text: str) -> bool:
    """Return whether a text is Python as a whole."""
    try:
        return bool(parse_source(text).body)
    except UnreadableError:
        return False


def parse_source(code: str, offset: int = 0) -> ast.Module:
    """The syntax tree of a piece of source, within bounds of time and depth. Raises `UnreadableError`."""
    span = (offset, offset + len(code))
    plain, strings = _STRING.subn("''", code)
    if len(plain) > MAX_CODE or strings > MAX_STRING_TOKENS:
        raise UnreadableError(f"more than {MAX_CODE} characters of code: write a few calls only", span)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a model's "\d" is no concern of the person who runs this
            return ast.parse(code)
    except SyntaxError as error:
        raise UnreadableError(f"no valid Python: {error.msg} (line {error.lineno})", span) from None
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:  # null bytes, depth, endless numbers
        raise UnreadableError(f"no valid Python: {words_of(error)}", span) from None


def literal(node: ast.expr) -> Any:
    """Return the value of a literal, or of lists, tuples and dicts of literals.

    Raises:
        UnreadableError: for any other expression.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, _CONSTANTS):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = node.operand.value if isinstance(node.operand, ast.Constant) else None
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, (ast.List, ast.Tuple)):
        return [literal(item) for item in node.elts]
    if isinstance(node, ast.Dict) and all(key is not None for key in node.keys):
        pairs = zip(node.keys, node.values, strict=True)
        return _each_once([(str(literal(key)), literal(value)) for key, value in pairs if key])
    raise UnreadableError(f"only literals are read as arguments, not a {type(node).__name__}")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Pairs as a dict. Raises `UnreadableError` for a name that is there twice: the last would replace the first."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise UnreadableError(f"{name[:_SHOWN]} is given twice")
        found[name] = value
    return found


def dotted(node: ast.expr) -> str:
    """`a.b` of names and attributes. Raises `UnreadableError` for anything else, and for dunders."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute) and len(parts) < 3:
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        raise UnreadableError("only plain calls such as module.function(...) are read")
    parts.append(node.id)
    if any(part.startswith("__") for part in parts):
        raise UnreadableError(f"{'.'.join(reversed(parts))[:_SHOWN]} is not allowed")
    return ".".join(reversed(parts))


def _call(statement: ast.stmt, span: tuple[int, int]) -> PyCall:
    if not isinstance(statement, ast.Expr):
        raise UnreadableError(f"only calls are read, not a {type(statement).__name__} statement", span)
    node = statement.value
    if isinstance(node, ast.Name):
        return PyCall(node.id, (), {}, span)  # a bare word such as DONE
    if not isinstance(node, ast.Call):
        raise UnreadableError(f"only calls are read, not a {type(node).__name__}", span)
    try:
        if any(keyword.arg is None for keyword in node.keywords):
            raise UnreadableError("** is not read")
        kwargs = _each_once([(str(keyword.arg), literal(keyword.value)) for keyword in node.keywords])
        return PyCall(dotted(node.func), tuple(literal(value) for value in node.args), kwargs, span)
    except RecursionError:
        raise UnreadableError("arguments are nested too deeply", span) from None
    except UnreadableError as error:
        raise UnreadableError(str(error), span) from None


def _line_starts(code: str) -> list[int]:
    """Offset of each line, in bytes of UTF-8 as `ast` counts columns."""
    starts = [0]
    for line in code.encode("utf-8", "surrogatepass").splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def _span(node: ast.stmt, code: str, starts: list[int], offset: int) -> tuple[int, int]:
    """Characters of a statement in the response."""
    raw = code.encode("utf-8", "surrogatepass")

    def character(line: int, column: int) -> int:
        place = starts[min(line - 1, len(starts) - 1)] + column
        return len(raw[:place].decode("utf-8", "ignore")) + offset

    end = character(node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)
    return character(node.lineno, node.col_offset), end
