from __future__ import annotations

from dart_lab.efficiency.events import Clock, Signal


def test_processes_sleep_and_wait_in_virtual_time():
    clock, told = Clock(), []
    door = Signal(clock)

    def opener():
        yield 5.0
        door.fire()
        told.append(("opened", clock.now))

    def guest(name):
        yield door
        told.append((name, clock.now))
        yield 1.5
        told.append((name, clock.now))

    clock.start(guest("a"))
    clock.start(guest("b"))
    clock.start(opener())
    clock.run(until=6.0)
    assert told == [("opened", 5.0), ("a", 5.0), ("b", 5.0)] and clock.now == 6.0
    clock.run(until=10.0)
    assert told[3:] == [("a", 6.5), ("b", 6.5)]


def test_a_signal_wakes_only_those_who_wait():
    clock, told = Clock(), []
    signal = Signal(clock)

    def late():
        yield 2.0
        yield signal
        told.append("woken")

    clock.start(late())
    clock.after(1.0, signal.fire)
    clock.run(until=3.0)
    assert told == []
    signal.fire()
    clock.run(until=3.0)
    assert told == ["woken"]
