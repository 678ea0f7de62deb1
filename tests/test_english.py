"""Docstrings and comments follow the rules of English in CONTRIBUTING.md, as far as exact patterns can tell."""

import ast
import io
import re
import tokenize

import pytest

from scripts import draw_rooms

ANYWHERE = {
    r"\bso many\b": "name the number: `n groups`, `at most n`",
    r"\b[Ww]hoever\b": "name the caller, the client or the worker",
    r"(?:\b(?:to|by|for|than|on) who\b|(?:[.] |\A|- )Who\b)": "name the caller, the client or the worker",
    r"\bwhat came of\b": "`the result of`",
    r"\bha(?:s|ve) it that\b": "`says that`",
    r"\b(?:it|they|that|this|which|a \w+) (?:is|are|was|were) none\b": "`None` is a value: write `no` or `not`",
}
"""Pattern in a docstring or a comment: what to write instead."""
DOCSTRINGS = {
    r"Raises `\w+`(?:, `\w+`)*: ": "errors with their reasons stand in a section `Raises:`",
}
FUNCTIONS = {
    r"\A(?:Whether|What|Who) ": "begin with a verb: `Return whether ...`",
}


def _docstrings(tree: ast.AST) -> list[tuple[int, str, bool]]:
    """Line, text, and whether it is of a function."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                found.append((node.body[0].lineno, text, function))
    return found


def _comments(text: str) -> list[tuple[int, str]]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]


def problems(text: str) -> list[str]:
    """Return what a module's docstrings and comments should say in another way."""
    texts = [(line, comment, ANYWHERE) for line, comment in _comments(text)]
    for line, docstring, function in _docstrings(ast.parse(text)):
        texts.append((line, docstring, ANYWHERE | DOCSTRINGS | (FUNCTIONS if function else {})))
    return [
        f"line {line}: {match[0]!r}: {advice}"
        for line, words, patterns in texts
        for pattern, advice in patterns.items()
        if (match := re.search(pattern, words))
    ]


@pytest.mark.parametrize("package", draw_rooms.PACKAGES)
def test_docstrings_and_comments_avoid_what_must_be_read_twice(package: str):
    modules = {name: path for name, path in draw_rooms.MODULES.items() if name.startswith(f"{package}.")}
    found = {name: problems(path.read_text(encoding="utf-8")) for name, path in modules.items()}
    assert found and not {name: wrong for name, wrong in found.items() if wrong}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('def f():\n    """Whether it holds."""\n', 1),
        ('def f():\n    """Return whether it holds."""\n', 0),
        ('def f():\n    """Read it. Raises `ValueError`: it is none."""\n', 2),
        ('def f():\n    """Read it. Raises `ValueError`."""\n', 0),
        ("x = 1  # whoever comes first\n", 1),
        ("x = 'whoever writes this is quoted'\n", 0),
        ("# after so many steps\n", 1),
        ("# given to who asks\n", 1),
        ("# for somebody who asks\n", 0),
        ("# what came of it\n", 1),
        ('class A:\n    """What a server has."""\n', 0),
    ],
)
def test_the_check_finds_just_these(text: str, count: int):
    assert len(problems(text)) == count
