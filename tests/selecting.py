"""Which files need not be imported for a marker expression. A doubt is a reason to import."""

from __future__ import annotations

import re


def ruled_out(source: str, expression: str) -> bool:
    """Whether "not a and not b ..." leaves out every test of a file by the marks that it gives to all of them."""
    terms = [term.strip().split() for term in expression.split(" and ")]
    if not all(len(term) == 2 and term[0] == "not" for term in terms):
        return False  # it may ask for anything: see the tests
    marks = re.findall(r"^pytestmark = (?:.*\n?(?:^[ \])].*\n)*)", source, re.MULTILINE)
    return bool(set(re.findall(r"pytest\.mark\.(\w+)", "".join(marks))) & {name for _, name in terms})
