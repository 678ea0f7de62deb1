"""An episode on a reused desktop equals the one on a fresh desktop, whatever the episode before has done.

Random episodes full of actions that leave something behind; the next episode's pixels, step by step, and its score are
compared with those of a desktop that has just been booted. The large version (`slow`) plays 300 of them.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from dart_gym.core.actions import Click, Drag, KeyDown, KeyUp, MouseDown, Move, Press, Scroll, Type, Wait
from dart_gym.sessions.session import Session

pytestmark = [pytest.mark.desktop, pytest.mark.timeout(300)]

PROBED = [("miniwob/enter-text", 1), ("miniwob/click-tab", 2), ("miniwob/login-user", 3), ("miniwob/copy-paste", 4)]
FIELD = {"miniwob/enter-text": (60, 65), "miniwob/login-user": (60, 85), "miniwob/copy-paste": (60, 90)}
COMMANDS = [
    *(["xset", "r", "off"], ["setxkbmap", "de"], ["setxkbmap", "no-such-layout"], ["xmodmap", "-e", "keycode 38 = q"]),
    *(
        ["xmodmap", "-e", "pointer = 3 2 1"],
        ["xset", "m", "9", "1"],
        ["xset", "led", "3"],
        ["xsetroot", "-solid", "red"],
    ),
    *(["sh", "-c", "echo -n secret | xclip -selection primary"], ["sh", "-c", "echo -n secret | xsel -ib"]),
    *(["xdotool", "keydown", "shift"], ["xdotool", "mousedown", "1"], ["sh", "-c", "echo x > ~/file; sleep 99 &"]),
    *(["sh", "-c", "echo Xft.dpi: 200 | xrdb -merge"], ["pkill", "openbox"]),
]
SPOILING = [
    *(Press(("ctrl", "+")), Press(("ctrl", "t")), Press(("ctrl", "shift", "i")), Press(("f7",)), Press(("ctrl", "s"))),
    *(Press(("ctrl", "n")), Press(("alt", "f4")), Press(("ctrl", "f")), KeyDown("ctrl"), KeyDown("alt")),
]


def random_action(rng: random.Random, spoil: float):
    if rng.random() < spoil:
        return rng.choice(SPOILING)
    point = (rng.randrange(168), rng.randrange(50, 224))
    return rng.choice(
        [
            *(Press(("capslock",)), Press(("numlock",)), Press(("scrolllock",)), KeyDown("shift"), KeyDown("a")),
            *(Type("Ab é中"), Press(("ctrl", "a")), Press(("ctrl", "c")), Press(("ctrl", "v")), Press(("ctrl", "x"))),
            *(Click(*point), Click(*point), Click(*point, count=3), Click(*point, button="right"), MouseDown("left")),
            *(Click(60, 65), Click(60, 90), MouseDown("right"), Move(*point), Scroll(*point, dy=3), KeyUp("shift")),
            *(Drag(((20, 70), point)), Press(("tab",)), Press(("insert",)), Press(("shift", "home")), Wait(0.01)),
        ]
    )


async def play(session: Session, rng: random.Random, spoil: float, commands: float) -> list:
    """A random episode; returns what it did."""
    task = rng.choice(PROBED)[0]
    await session.reset(task, seed=rng.randrange(1000, 2000), max_steps=40)
    done = []
    for _ in range(rng.randint(1, 6)):
        action = random_action(rng, spoil)
        done.append(action)
        if (await session.step(action)).terminal is not None:
            return done
    if rng.random() < commands:
        done.append(rng.choice(COMMANDS))
        await session._slot._desktop.launch(done[-1])
    return done


async def probe(session: Session, task: str, seed: int) -> tuple[list[np.ndarray], list[float | None]]:
    """Frames and scores of an episode in which what was left behind would show.

    Without its last frame: when a page has given its reward, the scenario waits for no other.
    """
    steps = [await session.reset(task, seed=seed, max_steps=40)]
    if task in FIELD:
        actions = (Click(*FIELD[task]), Press(("ctrl", "v")), Press(("a",)), Press(("num1",)), Click(button="middle"))
        for action in (*actions, Press(("ctrl", "z"))):
            steps.append(await session.step(action))
    steps.append(await session.reset(task, seed=seed))
    while steps[-1].terminal is None:
        steps.append(await session.step(await session.oracle()))
    return [step.observation.screenshot for step in steps if step.terminal is None], [
        step.evaluation.score for step in steps if step.evaluation is not None
    ]


async def differences(episodes: int, spoil: float, commands: float) -> list:
    rng = random.Random(episodes)
    expected = {}
    for task, seed in PROBED:
        async with Session() as fresh:
            expected[task] = await probe(fresh, task, seed)
        assert expected[task][1] == [1.0]
    wrong = []
    async with Session() as session:
        for number in range(episodes):
            done = await play(session, rng, spoil, commands)
            task, seed = PROBED[number % len(PROBED)]
            frames, scores = await probe(session, task, seed)
            same = [np.array_equal(*pair) for pair in zip(frames, expected[task][0], strict=False)]
            if not all(same) or len(frames) != len(expected[task][0]) or scores != expected[task][1]:
                wrong.append((number, task, done, same, scores))
    return wrong


async def test_a_reused_desktop_is_as_good_as_a_fresh_one():
    assert await differences(4, spoil=0.0, commands=0.0) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_300_random_episodes_leave_nothing_behind():
    assert await differences(300, spoil=0.03, commands=0.1) == []


async def test_locks_clipboard_and_held_keys_end_with_the_episode():
    async with Session() as session:
        await session.reset("miniwob/enter-text", seed=1, max_steps=20)
        desktop = session._slot._desktop
        for action in (Press(("capslock",)), Press(("numlock",)), Click(60, 65), Type("secret"), Press(("ctrl", "a"))):
            await session.step(action)
        for action in (Press(("ctrl", "c")), KeyDown("shift")):
            await desktop.perform(action)
        await session.reset("miniwob/enter-text", seed=2)
        assert session._slot._desktop is desktop, "none of this needs another desktop"
        state = (await desktop.execute(["xset", "q"])).stdout
        assert b"Caps Lock:   off" in state and b"Num Lock:    off" in state
        for selection in ("primary", "clipboard"):
            assert b"secret" not in (await desktop.execute(["xclip", "-o", "-selection", selection])).stdout


@pytest.mark.parametrize("action", [Press(("ctrl", "+")), KeyDown("ctrl")])
async def test_a_desktop_whose_browser_got_a_command_is_not_used_again(action):
    async with Session() as session:
        await session.reset("miniwob/enter-text", seed=1)
        desktop = session._slot._desktop
        await session.step(action)
        await session.reset("miniwob/enter-text", seed=2)
        assert session._slot._desktop is not desktop


async def test_a_desktop_that_ran_a_command_is_not_used_again():
    async with Session() as session:
        await session.reset("miniwob/enter-text", seed=1)
        desktop = session._slot._desktop
        await desktop.launch(["sh", "-c", "head -c 200000000 /dev/zero | tr '\\0' x | xclip -selection clipboard"])
        result = await session.reset("miniwob/enter-text", seed=2)
        assert session._slot._desktop is not desktop and result.terminal is None
