"""Values of actions: integers of every kind are taken, what is no integer is refused by name."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_gym.core.actions import (
    ACTION_TYPES,
    Click,
    Drag,
    KeyDown,
    KeyUp,
    MouseDown,
    MouseUp,
    Move,
    Press,
    Scroll,
    Type,
    Wait,
    action_from_dict,
    action_to_dict,
)
from dart_gym.envs.spaces import ActionSpace

INTEGERS = [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64, np.array, int]
FIELDS = [
    (Click, "x"),
    (Click, "y"),
    (Click, "count"),
    (Move, "x"),
    (Move, "y"),
    *((Scroll, n) for n in "x y dx dy".split()),
]
NO_INTEGERS = [2.0, np.float64(2), np.float32(2), True, np.True_, "2", None, np.array([2]), 2j, [2]]
NO_WAITS = [True, np.True_, "1", None, float("nan"), float("inf"), -1, 61, np.array([1.0, 2.0])]
POINT = {"x": 1, "y": 1}


def make(kind, name, value):
    return kind(**{**POINT, name: value})


@pytest.mark.parametrize("integer", INTEGERS)
@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_every_kind_of_integer_is_one(kind, name, integer):
    action = make(kind, name, integer(2))
    assert action == make(kind, name, 2) and type(getattr(action, name)) is int
    assert action_from_dict({"kind": kind.kind, **POINT, name: integer(2)}) == action
    assert json.loads(json.dumps(action_to_dict(action)))[name] == 2
    assert ActionSpace(9, 9).contains(action)


@pytest.mark.parametrize(
    "value", [2.0, np.float64(2), np.float32(2), True, np.True_, "2", None, np.array([2]), 2j, [2]]
)
@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_what_is_no_integer_is_refused_by_name(kind, name, value):
    if kind is Scroll and name in ("x", "y") and value is None:
        pytest.skip("a point may be left out")
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        make(kind, name, value)
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        action_from_dict({"kind": kind.kind, **POINT, name: value})


def test_a_path_may_be_an_array_of_integers_and_not_of_floats():
    assert Drag(np.array([[1, 2], [3, 4]])) == Drag(((1, 2), (3, 4)))
    assert all(type(value) is int for point in Drag(np.array([[1, 2], [3, 4]])).path for value in point)
    for path in (np.array([[1.0, 2], [3, 4]]), ((1, True), (2, 3)), 3, (3, 4), None, "abcd", [(1, 2, 3), (4, 5, 6)]):
        with pytest.raises(ValueError, match="path"):
            Drag(path)


@pytest.mark.parametrize("seconds", [np.float32(0.5), np.float64(0.5), 0.5])
def test_a_wait_takes_any_number(seconds):
    assert (
        Wait(seconds) == Wait(0.5) and type(Wait(seconds).seconds) is float and type(Wait(np.int64(2)).seconds) is int
    )


@pytest.mark.parametrize(
    "seconds", [True, np.True_, "1", None, float("nan"), float("inf"), -1, 61, np.array([1.0, 2.0])]
)
def test_a_wait_that_is_none_is_refused(seconds):
    with pytest.raises(ValueError, match="seconds"):
        Wait(seconds)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Press(None), "keys"),
        (lambda: Press(3), "keys"),
        (lambda: Press((3,)), "keys"),
        (lambda: Click(1, 1, modifiers=5), "modifiers"),
        (lambda: KeyDown(3), "key"),
        (lambda: KeyUp(None), "key"),
        (lambda: Type(3), "text"),
        (lambda: MouseDown(np.array([1])), "button"),
        (lambda: MouseUp(1), "button"),
        (lambda: Click(1, 1, button=["left"]), "button"),
        (lambda: Click(3), "x and y"),
    ],
)
def test_other_wrong_types_are_value_errors_that_name_the_field(make, name):
    with pytest.raises(ValueError, match=name):
        make()


def test_torch_scalars():
    torch = pytest.importorskip("torch")
    assert Click(torch.tensor(3), torch.argmax(torch.tensor([0, 5]))) == Click(3, 1)
    for value in (torch.tensor(True), torch.tensor(2.0)):
        with pytest.raises(ValueError, match=r"\bx\b"):
            Click(value, 1)


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.binary(max_size=3),
    st.lists(st.integers(-5, 5), max_size=3), st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
    st.sampled_from([np.int64(3), np.float32(1.5), np.True_, np.array([1, 2]), np.str_("a"), object()]),
)  # fmt: skip


@given(st.sampled_from(sorted(ACTION_TYPES)), st.data())
def test_whatever_a_field_holds_it_is_an_action_of_plain_values_or_a_value_error(kind, data):
    names = list(ACTION_TYPES[kind].__dataclass_fields__)
    fields = {name: data.draw(JUNK) for name in names if data.draw(st.booleans())}
    try:
        action = action_from_dict({"kind": kind, **fields})
    except ValueError:
        return
    assert action_from_dict(json.loads(json.dumps(action_to_dict(action)))) == action
