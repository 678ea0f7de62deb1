"""GUI-Owl-1.5 on a desktop, as Mobile-Agent-v3.5 asks it."""

from dart_agent.presets.preset import Layout, Preset, text
from dart_agent.presets.qwen3_vl import MOVE

PRESETS = (
    Preset(
        name="gui-owl-1.5",
        checkpoints=(
            "mPLUG/GUI-Owl-1.5-4B-Instruct",
            "mPLUG/GUI-Owl-1.5-8B-Instruct",
            "mPLUG/GUI-Owl-1.5-32B-Instruct",
        ),
        source="X-PLUG/MobileAgent@11cea57 Mobile-Agent-v3.5/computer_use/{utils,run_gui_owl_1_5_for_pc}.py",
        compared="messages made by build_messages of utils.py, steps 1 and 7",
        families=("qwen3_vl",),
        format="qwen:owl",
        layout=Layout(
            system=text("gui_owl_1_5_system"),
            first=MOVE.removeprefix("\n") + "{image}",
            history="sliding",
            parts=(("action", r"Action:(.*?)(?=<tool_call>|Action:|\Z)"),),
        ),
        screenshots=5,
        texts=4,
        pixels=(3136, 10_035_200),
        deviations=(
            "cookbook/end2end_usage_computer.ipynb has two more lines in the tool's text, no `Step 1` in an empty "
            "history but `No previous action.`, and asks at temperature 0; computer_use sends no temperature",
            "images are made multiples of 16 by the publisher, of 32 by the model's processor: here of 32",
            "`interact` and `call_user` ask the user; a desktop without one takes them as no action",
            "the executor pastes texts from the clipboard; here they are typed",
        ),
    ),
)
