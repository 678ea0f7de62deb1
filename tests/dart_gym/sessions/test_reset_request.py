"""What a reset asks for: plain values over the wire, refused where they cannot be meant."""

import json

import pytest

from dart_gym.core.errors import ConfigurationError, ProtocolError, UnknownTaskError
from dart_gym.sessions.reset_request import ResetRequest


def test_it_crosses_the_wire_as_it_is():
    request = ResetRequest("fake/two-steps", 3, max_steps=4, time_limit_s=1.5, desktop={"width": 320}, pacing="osworld")
    assert ResetRequest.from_wire(request.to_wire()) == request


def test_a_tasks_file_crosses_as_its_content(tmp_path):
    task = {"id": "a", "instruction": "do it"}
    (tmp_path / "task.json").write_text(json.dumps(task))
    assert ResetRequest(str(tmp_path / "task.json"), 0).with_content().task == task
    with pytest.raises(UnknownTaskError, match="cannot read"):
        ResetRequest(str(tmp_path / "none.json"), 0).with_content()


@pytest.mark.parametrize("change", [{"seed": "1"}, {"task": 3}, {"accessibility": 1}, {"desktop": []}])
def test_wrong_types_are_refused(change):
    with pytest.raises(ProtocolError, match="reset takes task, seed, .* and accessibility"):
        ResetRequest.from_wire(ResetRequest("fake/two-steps", 0).to_wire() | change)


@pytest.mark.parametrize(("field", "value"), [("pacing", "slow"), ("max_steps", 0)])
def test_values_that_cannot_be_meant_are_refused_where_they_are_given(field, value):
    with pytest.raises(ConfigurationError, match=str(value)):
        ResetRequest("fake/two-steps", 0, **{field: value})


def test_a_request_or_its_task_and_fields():
    request = ResetRequest("fake/two-steps", 0)
    assert ResetRequest.of(request, {}) == request
    assert ResetRequest.of(request, {"seed": 7}) == ResetRequest("fake/two-steps", 7)
    assert ResetRequest.of("fake/two-steps", {"seed": 0}) == request
    with pytest.raises(TypeError, match="sede"):
        ResetRequest.of("fake/two-steps", {"sede": 0})
