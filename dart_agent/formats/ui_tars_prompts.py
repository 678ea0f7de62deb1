"""Prompt texts. Words only: how they become tokens is `conversation`'s business.

`UI_TARS` follows the computer-use prompt that UI-TARS-1.5 was trained with (bytedance/UI-TARS, Apache-2.0), with
the password note that DART adds; a fine-tuned model expects it to the letter. `short` is for models that learn
their format from demonstrations: the instruction and nothing else.
"""

from typing import Literal

Style = Literal["ui_tars", "format", "short", "preset"]

SYSTEM = "You are a helpful assistant."

UI_TARS = """You are a GUI agent. You are given a task and your action history, with screenshots. \
You need to perform the next action to complete the task.

## Output Format
```
Thought: ...
Action: ...
```

## Action Space

{action_space}

## Note
- Use {language} in `Thought` part.
- Write a small plan and finally summarize your next action (with its target element) in one sentence in `Thought` part.
- My computer's password is 'password', feel free to use it when you need sudo rights.

## User Instruction
"""

# The escapes below reach the model as a backslash and a character.
UI_TARS_ACTION_SPACE = """click(start_box='<|box_start|>(x1,y1)<|box_end|>')
left_double(start_box='<|box_start|>(x1,y1)<|box_end|>')
right_single(start_box='<|box_start|>(x1,y1)<|box_end|>')
drag(start_box='<|box_start|>(x1,y1)<|box_end|>', end_box='<|box_start|>(x3,y3)<|box_end|>')
hotkey(key='')
type(content='') #If you want to submit your input, use "\\n" at the end of `content`.
scroll(start_box='<|box_start|>(x1,y1)<|box_end|>', direction='down or up or right or left')
wait() #Sleep for 5s and take a screenshot to check for any changes.
finished(content='xxx') # Use escape characters \\', \\", and \\n in content part to ensure we can parse the \
content in normal python string format."""

UI_TARS_DOUBAO_ACTION_SPACE = """click(point='<point>x1 y1</point>')
left_double(point='<point>x1 y1</point>')
right_single(point='<point>x1 y1</point>')
drag(start_point='<point>x1 y1</point>', end_point='<point>x2 y2</point>')
hotkey(key='ctrl c') # Split keys with a space and use lowercase. Also, do not use more than 3 keys in one hotkey \
action.
type(content='xxx') # Use escape characters \\', \\\", and \\n in content part to ensure we can parse the content in \
normal python string format. If you want to submit your input, use \\n at the end of content.\x20
scroll(point='<point>x1 y1</point>', direction='down or up or right or left') # Show more information on the \
`direction` side.
wait() #Sleep for 5s and take a screenshot to check for any changes.
finished(content='xxx') # Use escape characters \\', \\", and \\n in content part to ensure we can parse the \
content in normal python string format."""

CALL_USER = (
    "\ncall_user() # Submit the task and call the user when the task is unsolvable, or when you need the user's help."
)


def ui_tars_prompt(action_space: str = UI_TARS_ACTION_SPACE, language: str = "English", call_user: bool = False) -> str:
    """The text before the instruction.

    Args:
        action_space: one line per action, from `ActionFormat.describe`.
        language: of the thought.
        call_user: also offer `call_user()`, by which a model declares a task infeasible.
    """
    return UI_TARS.format(action_space=action_space + (CALL_USER if call_user else ""), language=language)
