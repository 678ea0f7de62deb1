"""Tasks that spoil their own desktop: what becomes of the episode, of its score, and of the next reset."""

from __future__ import annotations

import asyncio
import time

import pytest

from dart_gym.core.actions import Done, Press, Type
from dart_gym.core.outcomes import EvaluationStatus, TerminalState
from dart_gym.sessions.session import Session

pytestmark = [pytest.mark.desktop, pytest.mark.timeout(240)]


def task(*steps: dict, result: str = "echo right") -> dict:
    """A task on a small desktop that scores 1 if a command says "right"."""
    getter = {"type": "vm_command_line", "command": result, "shell": True}
    expected = {"type": "rule", "rules": {"include": ["right"], "exclude": []}}
    return {
        "id": "spoils",
        "instruction": "",
        "config": list(steps),
        "evaluator": {"func": "check_include_exclude", "result": getter, "expected": expected},
        "dart": {"desktop": {"width": 320, "height": 240, "profile": "bare"}},
    }


def run(command: str) -> dict:
    return {"type": "execute", "parameters": {"command": command, "shell": True}}


async def score(session: Session, one: dict, *actions, **fields) -> float | None:
    first = await session.reset(one, seed=1, **fields)
    assert first.terminal is None, first.evaluation
    for action in (*actions, Done()):
        last = await session.step(action)
    assert last.evaluation is not None and last.evaluation.status is EvaluationStatus.OK, last.evaluation
    return last.evaluation.score


@pytest.mark.parametrize(
    "command",
    ["setxkbmap no-such-layout", "setxkbmap -layout us,no-such -option no:such", "xkbcomp /dev/null $DISPLAY"],
)
async def test_a_layout_that_does_not_exist_leaves_the_keyboard_as_it_is(command):
    """A program's exit status is no failure of a set-up, as in OSWorld; text arrives all the same."""
    text = "right-zy/é"
    entry = {"type": "launch", "parameters": {"command": "zenity --entry > ~/typed", "shell": True}}
    shown = run("for i in $(seq 200); do wmctrl -l | grep . && break; sleep 0.05; done")
    spoilt = task(run(command), entry, shown, result="cat ~/typed")
    spoilt["evaluator"]["postconfig"] = [run("for i in $(seq 50); do [ -s ~/typed ] && break; sleep 0.1; done")]
    spoilt["evaluator"]["expected"]["rules"]["include"] = [text]
    async with Session() as session:
        assert await score(session, spoilt, Type(text), Press(("enter",))) == 1.0


@pytest.mark.thorough
async def test_without_its_window_manager_a_desktop_has_ended_and_the_next_reset_has_another():
    plain = task()
    async with Session() as session:
        for kill in ("pkill openbox", "pkill -9 openbox"):
            lost = await session.reset(task(run(kill), run("sleep 9")), seed=1)
            assert lost.terminal is TerminalState.ENV_ERROR and lost.evaluation.score is None, lost
            assert "set-up step" in lost.evaluation.detail and "the desktop has ended" in lost.evaluation.detail
            assert await score(session, plain) == 1.0
        await session.reset(plain, seed=1)
        await session.slot.booted.launch(["pkill", "openbox"])
        async with asyncio.timeout(60):
            while (ended := await session.step(Press(("a",)))).terminal is None:
                pass
        assert ended.terminal is TerminalState.DESKTOP_KILLED and ended.evaluation.score == 0.0, ended
        assert await score(session, plain) == 1.0


@pytest.mark.thorough
@pytest.mark.parametrize("step", [{"type": "sleep", "parameters": {"seconds": 60}}, run("sleep 60")])
async def test_a_set_up_that_sleeps_past_its_deadline_is_an_error_within_it(step):
    async with Session() as session:
        started = time.monotonic()
        lost = await session.reset(task(step), seed=1, deadline_s=8.0)
        assert time.monotonic() - started < 20
        assert lost.terminal is TerminalState.ENV_ERROR and lost.evaluation.score is None
        assert "deadline" in lost.evaluation.detail or "60" in lost.evaluation.detail, lost.evaluation.detail
        assert await score(session, task()) == 1.0
