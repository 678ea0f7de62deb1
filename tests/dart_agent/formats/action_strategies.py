"""Typed actions drawn at random, for the tests of all formats."""

import string

from hypothesis import strategies as st

from dart_gym.core import actions as a
from dart_gym.core.keys import KEYS

KEY = st.sampled_from(sorted(KEYS) + [c for c in string.printable if c.isprintable() and c != " "] + ["é", "ß", "你"])
BUTTON = st.sampled_from(["left", "middle", "right"])
TEXT = st.text(st.characters(codec="utf-8"))


def any_action(width: int, height: int) -> st.SearchStrategy[a.Action]:
    """Any action with places on a screen of this size."""
    point = st.tuples(st.integers(0, width - 1), st.integers(0, height - 1))
    place = st.one_of(st.just((None, None)), point)
    notches = st.integers(-100, 100)
    return st.one_of(
        st.builds(
            lambda p, b, n, m: a.Click(*p, b, n, tuple(m)), place, BUTTON, st.integers(1, 3), st.lists(KEY, max_size=2)
        ),
        st.builds(lambda p, n: a.Click(*p, count=n), point, st.integers(1, 3)),
        st.builds(lambda p: a.Move(*p), point),
        st.builds(lambda p, b: a.Drag(tuple(p), b), st.lists(point, min_size=2, max_size=5), BUTTON),
        st.builds(lambda p, q: a.Drag((p, q)), point, point),
        st.builds(lambda p, dx, dy: a.Scroll(*p, dx, dy), place, notches, notches),
        st.builds(lambda p, dy: a.Scroll(*p, dy=dy), place, notches),
        st.builds(a.Type, TEXT),
        st.builds(lambda k: a.Press(tuple(k)), st.lists(KEY, min_size=1, max_size=8, unique_by=str.lower)),
        st.builds(a.KeyDown, KEY),
        st.builds(a.KeyUp, KEY),
        st.builds(a.MouseDown, BUTTON),
        st.builds(a.MouseUp, BUTTON),
        st.builds(a.Wait, st.floats(0, 60)),
        st.builds(a.Wait, st.sampled_from([0.0, 2.0, 5.0])),
        st.builds(a.Done, st.one_of(st.just(""), TEXT)),
        st.builds(a.Fail, st.one_of(st.just(""), TEXT)),
        st.builds(a.AskUser, TEXT),
    )
