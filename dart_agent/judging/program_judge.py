"""A program as a judge: it reads an episode as JSON and prints a number.

On its standard input stands one object: `task_id`, `seed`, `instruction`, `terminal`, and `steps` with `text`,
`actions`, `action_error` and `error` of each. It prints a number of [0, 1] on the last line of its output, or an object
such as `{"value": 0.5, "steps": [0.0, 0.5], "said": "half of it"}`. Anything else is no judgement. The evaluator's
score is not among what it reads.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, TypeGuard

from pydantic import Field

from dart_agent.episodes.trajectory import Trajectory
from dart_agent.judging.judge import JudgeError, Judgement, Screens
from dart_gym.core.section import Section

LONGEST_OUTPUT = 1 << 20
_STEP = ("text", "actions", "action_error", "error")


class ProgramOptions(Section):
    """Options of `program`."""

    command: tuple[str, ...] = Field(min_length=1, description="The program and its arguments.")
    timeout_s: float = Field(30.0, gt=0, description="Seconds for an episode.")


class ProgramJudge:
    """Runs a program for each episode, several at the same time."""

    Options = ProgramOptions

    def __init__(self, **options: Any) -> None:
        self._options = ProgramOptions.parse(options)
        self._room = asyncio.Semaphore(4)

    async def start(self) -> None:
        """Nothing is to be opened."""

    async def judge(self, episode: Trajectory, screens: Screens) -> Judgement:
        """Run the program.

        Raises:
            JudgeError: it cannot be started, takes too long, or ends with an error.
        """
        told = {name: getattr(episode, name) for name in ("task_id", "seed", "instruction")}
        told |= {"terminal": str(episode.terminal), "steps": [{n: getattr(s, n) for n in _STEP} for s in episode.steps]}
        async with self._room:
            output = await self._run(json.dumps(told).encode())
        return read_output(output)

    async def close(self) -> None:
        """Nothing is open."""

    async def _run(self, told: bytes) -> str:
        command = self._options.command
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise JudgeError(f"the judging program {command[0]!r} cannot be started: {error.strerror}") from error
        try:
            async with asyncio.timeout(self._options.timeout_s):
                output, errors = await process.communicate(told)
        except TimeoutError:
            raise JudgeError(f"the judging program did not end within {self._options.timeout_s:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            words = " ".join(errors.decode(errors="replace").split())[-200:]
            raise JudgeError(f"the judging program ended with status {process.returncode}: {words}")
        return output[-LONGEST_OUTPUT:].decode(errors="replace")


def read_output(output: str) -> Judgement:
    """Return the judgement that a program printed on its last line; else one without a value. Pure."""
    lines = output.strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else None
    except ValueError:
        return Judgement(said=lines[-1][:200])
    told = found if isinstance(found, dict) else {"value": found}
    value, steps = told.get("value"), told.get("steps")
    each = tuple(map(float, steps)) if isinstance(steps, list) and all(map(_number, steps)) else ()
    return Judgement(float(value) if _number(value) else None, each, str(told.get("said", ""))[:2000])


def _number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e9  # NaN is not
