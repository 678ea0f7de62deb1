"""Which files need not be imported for a marker expression. A doubt is a reason to import."""

from __future__ import annotations

import re


def ruled_out(source: str, expression: str) -> bool:
    """Whether "a and not b ..." leaves out every test of a file: none has `a`, or the file gives `b` to all of them."""
    terms = [term.removeprefix("not ") for term in expression.split(" and ")]
    if not all(re.fullmatch(r"\w+", term) for term in terms):
        return False  # it may ask for anything: see the tests
    asked = {term for term in expression.split(" and ") if not term.startswith("not ")}
    if not asked <= set(re.findall(r"\bmark\.(\w+)", source)):
        return True
    marks = re.findall(r"^pytestmark = (?:.*\n?(?:^[ \])].*\n)*)", source, re.MULTILINE)
    return bool(set(re.findall(r"pytest\.mark\.(\w+)", "".join(marks))) & ({*terms} - asked))
