"""OpenCUA: `## Observation:`, `## Thought:`, `## Action:` and pyautogui code in a block under `## Code:`.

The code is read through an allow-list and never run; see `python_actions`. `computer.terminate(status=...)` ends the
episode. What coordinates mean depends on the checkpoint: OpenCUA-7B and -32B write pixels of the resized image.
"""

import re
from typing import Literal, get_args

from dart_gym_python_actions import BARE, MODULES, read_actions, write_action

from dart_agent.formats.grammar.action_format import (
    ParsedResponse,
    Reading,
    Response,
    Screen,
    UnreadableError,
    as_tuple,
    one_of,
)
from dart_agent.formats.grammar.literals import code_of, outside, read_calls
from dart_agent.models.coordinates import QWEN25_VL, CoordinateSpace
from dart_gym.core import actions as a

Coordinates = Literal["qwen25", "absolute", "relative", "relative1000"]
_CODE = re.compile(r"^#{1,3}[ \t]*Code:?[ \t]*$", re.MULTILINE | re.IGNORECASE)

DESCRIPTION = """For each step, write:
## Thought:
your reasoning
## Action:
one sentence that says what you do
## Code:
```python
pyautogui calls with literal arguments, such as pyautogui.click(x=1, y=2), pyautogui.write(message='text')
```
A triple click is computer.triple_click(x=1, y=2). Wait with computer.wait(). End with
computer.terminate(status='success') or computer.terminate(status='failure'), in a ```code block."""


class OpenCUAFormat:
    """`ActionFormat` of OpenCUA."""

    name = "opencua"
    variants = {name: {"coordinates": name} for name in get_args(Coordinates)}

    def __init__(self, coordinates: Coordinates = "qwen25") -> None:
        """Choose what coordinates mean: resized pixels, pixels, fractions of the screen, or 0 to 1000."""
        one_of(self.variants, "coordinates", coordinates)
        self._coordinates = coordinates

    def space(self, screen: Screen) -> CoordinateSpace:
        """By the kind of coordinates; resized by OpenCUA's own limits for a bare size."""
        if size := {"relative": 1, "relative1000": 1000}.get(self._coordinates):
            return CoordinateSpace.relative(screen, size)
        absolute = self._coordinates == "absolute"
        return CoordinateSpace.of(screen) if absolute else CoordinateSpace.for_image(screen, **QWEN25_VL)

    def parse(self, response: Response, screen: Screen) -> ParsedResponse:
        """Thought, actions and errors of a response; the thought keeps the other sections as they are."""
        reading = Reading()
        try:
            text, space = reading.answer(response), self.space(screen)
            blocks = code_of(text, BARE)
            if not blocks:
                raise UnreadableError("no code block under '## Code:'", (0, len(text)))
            reading.thought = _CODE.sub("", outside(text, blocks)).strip()
            for block in blocks:
                read_actions(read_calls(text[block.code], imports=MODULES, offset=block.code.start), space, reading)
        except ValueError as error:
            reading.give_up(error)
        return reading.result("there is no call in the code")

    def format(self, actions: a.Action | tuple[a.Action, ...], screen: Screen, thought: str = "") -> str:
        """Write a response; a thought stands in front as it is, sections and all."""
        space = self.space(screen)
        lines = [line for action in as_tuple(actions) for line in _write(action, space)]
        block = "## Code:\n```python\n" + "\n".join(lines) + "\n```"
        return f"{thought}\n{block}" if thought else block

    def describe(self) -> str:
        """The layout as the prompt states it."""
        return DESCRIPTION


def _write(action: a.Action, space: CoordinateSpace) -> list[str]:
    match action:
        case a.Done(answer=answer) | a.Fail(reason=answer):
            status = "success" if isinstance(action, a.Done) else "failure"
            return [f"computer.terminate(status={status!r}{f', answer={answer!r}' if answer else ''})"]
    return write_action(action, space)
