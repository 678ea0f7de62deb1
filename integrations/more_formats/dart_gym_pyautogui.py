"""OSWorld's `pyautogui`: Python calls in a code block, read through an allow-list and never run.

All code blocks count, in order; where there is none, the whole text if it is Python, or the calls that it ends with.
The bare words `WAIT`, `DONE` and `FAIL` stand for actions. Coordinates are absolute in the image that the model saw.
See `python_actions` for the calls.
"""

from dart_gym_python_actions import BARE, MODULES, read_actions, write_action

from dart_agent.formats.grammar.action_format import (
    ParsedResponse,
    Reading,
    Response,
    Screen,
    as_tuple,
)
from dart_agent.formats.grammar.literals import Block, code_of, is_source, outside, read_calls
from dart_agent.models.coordinates import CoordinateSpace
from dart_gym.core import actions as a

_WORDS = {"WAIT": a.Wait(2.0), "DONE": a.Done(), "FAIL": a.Fail()}

DESCRIPTION = """Python code in one ```python block that calls pyautogui with literal arguments only:
pyautogui.click(x, y, clicks=1, button='left'), pyautogui.moveTo(x, y), pyautogui.dragTo(x, y) after moveTo,
pyautogui.scroll(notches, x=x, y=y) with up positive, pyautogui.write('text'), pyautogui.press('enter'),
pyautogui.hotkey('ctrl', 'c'), pyautogui.keyDown('shift'), pyautogui.keyUp('shift'), time.sleep(seconds).
No variables, loops or other functions. Or one word: WAIT, DONE (the task is accomplished), FAIL (it cannot be)."""


class PyAutoGuiFormat:
    """`ActionFormat` of pyautogui code."""

    name = "pyautogui"

    def space(self, screen: Screen) -> CoordinateSpace:
        """Absolute in the image that the model saw."""
        return CoordinateSpace.of(screen)

    def parse(self, response: Response, screen: Screen) -> ParsedResponse:
        """Thought, actions and errors of a response."""
        reading = Reading()
        try:
            text, space = reading.answer(response), self.space(screen)
            blocks = code_of(text, None if is_source(text) else BARE) or [Block(0, len(text), slice(0, len(text)))]
            reading.thought = outside(text, blocks)
            for block in blocks:
                read_actions(read_calls(text[block.code], imports=MODULES, offset=block.code.start), space, reading)
        except ValueError as error:
            reading.give_up(error)
        return reading.result("there is no call in the code")

    def format(self, actions: a.Action | tuple[a.Action, ...], screen: Screen, thought: str = "") -> str:
        """Write a response: the thought, and a code block with one line per call."""
        words = {value: word for word, value in _WORDS.items()}
        space = self.space(screen)
        lines: list[str] = []
        for action in as_tuple(actions):
            lines += [words[action]] if action in words else write_action(action, space)
        block = "```python\n" + "\n".join(lines) + "\n```"
        return f"{thought}\n{block}" if thought else block

    def describe(self) -> str:
        """The action space as the prompt states it."""
        return DESCRIPTION
