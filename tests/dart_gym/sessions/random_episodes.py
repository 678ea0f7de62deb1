"""Random episodes that leave something behind, and what an episode after them shows, sees and scores.

    python -m tests.dart_gym.sessions.random_episodes --episodes 100 --seed 1

plays as many, names each that is followed by another episode than a fresh desktop gives, and counts them.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from dart_gym.core.actions import Action, Click, Drag, KeyDown, KeyUp, MouseDown, Move, Press, Scroll, Type, Wait
from dart_gym.sessions.session import Session
from tests.dart_gym.sessions.seen_events import SeenEvents

PROBED = [("miniwob/enter-text", 1), ("miniwob/click-tab", 2), ("miniwob/login-user", 3), ("miniwob/copy-paste", 4)]
FIELD = {"miniwob/enter-text": (60, 65), "miniwob/login-user": (60, 85), "miniwob/copy-paste": (60, 90)}
COMMANDS = [
    *(["xset", "r", "off"], ["setxkbmap", "de"], ["setxkbmap", "no-such-layout"], ["xmodmap", "-e", "keycode 38 = q"]),
    *(["xmodmap", "-e", "pointer = 3 2 1"], ["xset", "m", "9", "1"], ["xset", "led", "3"]),
    *(["xsetroot", "-solid", "red"], ["sh", "-c", "echo -n secret | xclip -selection primary"]),
    *(["sh", "-c", "echo -n secret | xsel -ib"], ["xdotool", "keydown", "shift"], ["xdotool", "mousedown", "1"]),
    *(["sh", "-c", "echo x > ~/file; sleep 99 &"], ["sh", "-c", "echo Xft.dpi: 200 | xrdb -merge"]),
    ["pkill", "openbox"],
]
SPOILING = [
    *(Press(("ctrl", "+")), Press(("ctrl", "t")), Press(("ctrl", "shift", "i")), Press(("f7",)), Press(("ctrl", "s"))),
    *(Press(("ctrl", "n")), Press(("alt", "f4")), Press(("ctrl", "f")), KeyDown("ctrl"), KeyDown("alt")),
    *(
        Press(("shift", "esc")),
        Press(("ctrl", "shift", "delete")),
        Press(("shift", "numlock")),
        Press(("shift", "f10")),
    ),
]
MODIFIERS = ["shift", "shiftright", "ctrl"]
KEYS = [
    *(
        "a",
        "c",
        "v",
        "x",
        "z",
        "insert",
        "delete",
        "enter",
        "tab",
        "space",
        "backspace",
        "esc",
        "home",
        "end",
        "pageup",
    ),
    *("pagedown", "up", "down", "left", "right", "capslock", "numlock", "scrolllock", "pause", "num5", "add", "divide"),
]


@dataclass(frozen=True)
class Seen:
    """An episode as its policy and its desktop's programs see it."""

    frames: list[np.ndarray]
    scores: list[float | None]
    events: dict[str, list[str]]

    def differs_from(self, other: Seen) -> list[str]:
        """In what it differs."""
        same = [np.array_equal(*pair) for pair in zip(self.frames, other.frames, strict=False)]
        wrong = [f"frame {number}" for number, equal in enumerate(same) if not equal]
        if len(self.frames) != len(other.frames):
            wrong.append(f"{len(self.frames)} frames, not {len(other.frames)}")
        if self.scores != other.scores:
            wrong.append(f"scores {self.scores}")
        kinds = sorted(self.events.keys() | other.events.keys())
        return wrong + [
            f"{kind}: {self.events.get(kind)}, not {other.events.get(kind)}"
            for kind in kinds
            if self.events.get(kind) != other.events.get(kind)
        ]


def random_action(rng: random.Random, spoil: float) -> Action:
    """What leaves something behind; with the probability `spoil`, what no reset takes back."""
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
            *(Press((rng.choice(MODIFIERS), rng.choice(KEYS))), KeyDown(rng.choice(KEYS)), MouseDown("middle")),
            *(Click(*point, modifiers=("shift",)), Scroll(*point, dx=-20), Scroll(*point, dy=-20), Type("\t\n x")),
        ]
    )


async def play(session: Session, rng: random.Random, spoil: float, commands: float) -> list[Any]:
    """A random episode; returns what it did."""
    task = rng.choice(PROBED)[0]
    await session.reset(task, seed=rng.randrange(1000, 2000), max_steps=40)
    done: list[Any] = [task]
    for _ in range(rng.randint(1, 8)):
        action = random_action(rng, spoil)
        done.append(action)
        if (await session.step(action)).terminal is not None:
            return done
    if rng.random() < commands:
        done.append(rng.choice(COMMANDS))
        await session.slot.booted.launch(done[-1])
    return done


async def probe(session: Session, task: str, seed: int) -> Seen:
    """An episode in which what was left behind would show.

    Without its last frame: when a page has given its reward, the scenario waits for no other.
    """
    steps = [await session.reset(task, seed=seed, max_steps=40)]
    if steps[0].evaluation is not None:
        return Seen([], [], {"reset": [steps[0].evaluation.detail]})
    seen = await SeenEvents.begin(session.slot.booted)
    try:
        if task in FIELD:
            actions = (
                Click(*FIELD[task]),
                Press(("ctrl", "v")),
                Press(("a",)),
                Press(("num1",)),
                Click(button="middle"),
            )
            for action in (*actions, Press(("ctrl", "z"))):
                steps.append(await session.step(action))
            steps.append(await session.reset(task, seed=seed))
        while steps[-1].terminal is None:
            steps.append(await session.step(await session.oracle()))
    finally:
        events = await seen.end()
    frames = [step.observation.screenshot for step in steps if step.terminal is None]
    return Seen(frames, [step.evaluation.score for step in steps if step.evaluation is not None], events)


async def differences(episodes: int, spoil: float, commands: float, seed: int = 0) -> list[Any]:
    """Play random episodes and return those that a fresh desktop's episode does not follow, with the differences."""
    rng = random.Random(f"{episodes} {seed}")
    expected = {}
    for task, number in PROBED:
        async with Session() as fresh:
            expected[task] = await probe(fresh, task, number)
        assert expected[task].scores == [1.0], expected[task]
    wrong = []
    async with Session() as session:
        for number in range(episodes):
            done = await play(session, rng, spoil, commands)
            task, task_seed = PROBED[number % len(PROBED)]
            if found := (await probe(session, task, task_seed)).differs_from(expected[task]):
                wrong.append((number, task, done, found))
    return wrong


def main() -> None:
    """Play, and say what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, kind, default in (
        ("episodes", int, 300),
        ("seed", int, 0),
        ("spoil", float, 0.03),
        ("commands", float, 0.1),
    ):
        parser.add_argument(f"--{name}", type=kind, default=default)
    wanted = vars(parser.parse_args())
    wrong = asyncio.run(differences(**wanted))
    for number, task, done, found in wrong:
        print(f"{number}: {task} after {done}:", *found, sep="\n    ")
    print(f"{wanted['episodes']} episodes, {len(wrong)} followed by another one than on a fresh desktop")


if __name__ == "__main__":
    main()
