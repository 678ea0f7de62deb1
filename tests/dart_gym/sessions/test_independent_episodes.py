"""An episode on a reused desktop equals the one on a fresh desktop, whatever the episode before has done.

Random episodes full of actions that leave something behind; the next episode's pixels, step by step, the events that
the X server and the page see of it, and its score are compared with those of a desktop that has just been booted. The
large version (`slow`) plays 300 of them, and `python -m tests.dart_gym.sessions.random_episodes` as many as one wants.
"""

from __future__ import annotations

import pytest

from dart_gym.core.actions import Click, KeyDown, Press, Type
from dart_gym.sessions.session import Session
from tests.dart_gym.sessions.random_episodes import differences

pytestmark = [pytest.mark.desktop, pytest.mark.timeout(300)]


@pytest.mark.thorough
async def test_a_reused_desktop_is_as_good_as_a_fresh_one():
    assert await differences(4, spoil=0.0, commands=0.0) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_300_random_episodes_leave_nothing_behind():
    assert await differences(300, spoil=0.03, commands=0.1) == []


async def test_locks_clipboard_and_held_keys_end_with_the_episode():
    async with Session() as session:
        await session.reset("miniwob/enter-text", seed=1, max_steps=20)
        desktop = session.slot.booted
        for action in (Press(("capslock",)), Press(("numlock",)), Click(60, 65), Type("secret"), Press(("ctrl", "a"))):
            await session.step(action)
        for action in (Press(("ctrl", "c")), KeyDown("shift")):
            await desktop.perform(action)
        await session.reset("miniwob/enter-text", seed=2)
        assert session.slot.booted is desktop, "none of this needs another desktop"
        state = (await desktop.execute(["xset", "q"])).stdout
        assert b"Caps Lock:   off" in state and b"Num Lock:    off" in state
        for selection in ("primary", "clipboard"):
            assert b"secret" not in (await desktop.execute(["xclip", "-o", "-selection", selection])).stdout


@pytest.mark.thorough
@pytest.mark.parametrize("action", [Press(("ctrl", "+")), KeyDown("ctrl")])
async def test_a_desktop_whose_browser_got_a_command_is_not_used_again(action):
    async with Session() as session:
        await session.reset("miniwob/enter-text", seed=1)
        desktop = session.slot.booted
        await session.step(action)
        await session.reset("miniwob/enter-text", seed=2)
        assert session.slot.booted is not desktop


async def test_shortcuts_of_the_browser_do_not_lead_out_of_the_page():
    """Its tasks, which hid the page from then on, and the window that deletes browsing data."""
    async with Session() as session:
        await session.reset("miniwob/click-tab", seed=3, max_steps=20)
        for action in (Press(("shift", "esc")), Press(("ctrl", "shift", "delete")), KeyDown("shift"), Press(("esc",))):
            assert (await session.step(action)).terminal is None, action
        assert (await session.step(await session.oracle())).evaluation.score == 1.0


@pytest.mark.thorough
async def test_a_desktop_that_ran_a_command_is_not_used_again():
    async with Session() as session:
        await session.reset("miniwob/enter-text", seed=1)
        desktop = session.slot.booted
        await desktop.launch(["sh", "-c", "head -c 200000000 /dev/zero | tr '\\0' x | xclip -selection clipboard"])
        result = await session.reset("miniwob/enter-text", seed=2)
        assert session.slot.booted is not desktop and result.terminal is None
