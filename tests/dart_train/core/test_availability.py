from __future__ import annotations

import math

import pytest

from dart_train.core.availability import Availability, insist
from dart_train.core.train_errors import CheckpointError
from dart_train.rollout.play.dependencies import Dependencies


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_pause_doubles_up_to_a_ceiling_for_each_source():
    availability = Availability("the database", 60.0)
    assert [availability.failed("gone", "a") for _ in range(3)] == [0.1, 0.2, 0.4]
    assert availability.failed("gone", "b") == 0.1


def test_people_are_told_once_that_it_is_away_and_once_that_it_is_back(caplog):
    clock = Clock()
    availability = Availability("the database", 60.0, clock=clock)
    availability.succeeded("recorder")
    for source in ("recorder", "planner", "recorder"):
        availability.failed(OSError("connection\n refused"), source)
        clock.now += 1
    availability.succeeded("planner")
    assert availability.away  # the recorder has not succeeded yet
    assert caplog.messages == ["the database is away, will go on trying for 60 s: connection refused"]
    availability.succeeded("recorder")
    assert caplog.messages[1:] == ["the database is back after 3.0 s"]
    assert not availability.away and availability.count == 1 and availability.state() is None
    availability.succeeded("recorder")
    assert len(caplog.messages) == 2


def test_the_time_limit_starts_anew_with_each_absence():
    clock = Clock()
    availability = Availability("it", 10.0, clock=clock)
    availability.failed("gone")
    clock.now += 10.0
    assert not availability.timed_out
    clock.now += 0.1
    assert availability.timed_out
    availability.restored()
    assert not availability.timed_out
    availability.failed("gone again")
    assert not availability.timed_out and availability.count == 2


def test_no_limit_is_not_counted_in_seconds(caplog):
    Availability("the disk", math.inf, words=("is full", "has space")).failed("no space left")
    assert caplog.messages == ["the disk is full, will go on trying: no space left"]


def test_what_is_away_is_shown_by_name():
    dependencies = Dependencies(60.0)
    assert dependencies.present() == {}
    dependencies.disk.failed("no space left")
    assert set(dependencies.present()) == {"disk"} and dependencies.present()["disk"].what == "the disk is full"


def test_what_is_wrong_for_good_is_not_called_away(caplog):
    def damaged() -> None:
        raise CheckpointError("version 3 is cut off")

    with pytest.raises(CheckpointError):
        insist(damaged, 60.0)
    assert caplog.messages == []
