from __future__ import annotations

import math

from dart_train.core.outage import Outage, backoff
from dart_train.rollout.play.outages import Outages


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_pause_doubles_up_to_a_ceiling_for_each_source():
    assert [backoff(tries) for tries in range(9)] == [0.1, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert backoff(10_000) == 5.0
    outage = Outage("the database", 60.0)
    assert [outage.failed("gone", "a") for _ in range(3)] == [0.1, 0.2, 0.4]
    assert outage.failed("gone", "b") == 0.1


def test_people_are_told_once_that_it_is_away_and_once_that_it_is_back(caplog):
    clock = Clock()
    outage = Outage("the database", 60.0, clock=clock)
    outage.succeeded("recorder")
    for source in ("recorder", "planner", "recorder"):
        outage.failed(OSError("connection\n refused"), source)
        clock.now += 1
    outage.succeeded("planner")
    assert outage.away  # the recorder has not succeeded yet
    assert caplog.messages == ["the database is away, will go on trying for 60 s: connection refused"]
    outage.succeeded("recorder")
    assert caplog.messages[1:] == ["the database is back after 3.0 s"]
    assert not outage.away and outage.count == 1 and outage.total_s == 3.0 and outage.state() is None
    outage.succeeded("recorder")
    assert len(caplog.messages) == 2


def test_patience_ends_with_the_outage():
    clock = Clock()
    outage = Outage("it", 10.0, clock=clock)
    outage.failed("gone")
    clock.now += 10.0
    assert not outage.over
    clock.now += 0.1
    assert outage.over
    outage.ended()
    assert not outage.over
    outage.failed("gone again")
    assert not outage.over and outage.count == 2


def test_endless_patience_is_not_counted_in_seconds(caplog):
    Outage("the disk", math.inf, words=("is full", "has space")).failed("no space left")
    assert caplog.messages == ["the disk is full, will go on trying: no space left"]


def test_what_is_away_is_shown_by_name():
    outages = Outages(60.0)
    assert outages.present() == {}
    outages.disk.failed("no space left")
    assert set(outages.present()) == {"disk"} and outages.present()["disk"].what == "the disk is full"
