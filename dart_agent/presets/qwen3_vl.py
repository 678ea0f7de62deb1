"""Qwen3-VL, as OSWorld's agent `qwen3vl_agent` asks it."""

from dataclasses import replace

from dart_agent.presets.preset import Layout, Preset, text

MOVE = """
Please generate the next move according to the UI screenshot, instruction and previous actions.

Instruction: {instruction}

Previous actions:
{previous}"""
MOST_PIXELS = 16 * 16 * 4 * 12800

INSTRUCT = Preset(
    name="qwen3-vl",
    checkpoints=("Qwen/Qwen3-VL-8B-Instruct", "Qwen/Qwen3-VL-32B-Instruct", "Qwen/Qwen3-VL-235B-A22B-Instruct"),
    source="OSWorld mm_agents/qwen3vl_agent.py and run_multienv_qwen3vl.py (copy in mrwwk/DeskCraft@3e11457)",
    compared="messages made by qwen3vl_agent.py, steps 1 and 7",
    families=("qwen3_vl",),
    format="qwen:3",
    layout=Layout(
        system=text("qwen3_vl_system"),
        first="{image}" + MOVE,
        history="sliding",
        parts=(("action", r"^\s*[Aa]ction:([^\n]*)"),),
    ),
    screenshots=5,
    texts=4,
    pixels=(3136, MOST_PIXELS),
    top_p=0.9,
    max_tokens=32768,
    deviations=(
        "the prompt speaks of a screen of 1000x1000, the agent scales by 999, the maintainers say 0 to 1000 "
        "(QwenLM/Qwen3-VL#1741): here 999",
        "the agent cuts the fraction of a pixel off; here it is rounded to the nearest",
        "a response without an `Action:` line is remembered as `Performing click action`; here as an empty line",
        "the agent scrolls by `pixels` notches; here a notch is 100 of them",
        "mobile and browser prompts of QwenLM/Qwen3-VL cookbooks differ from this one",
    ),
)
PRESETS = (
    INSTRUCT,
    replace(
        INSTRUCT,
        name="qwen3-vl-thinking",
        checkpoints=("Qwen/Qwen3-VL-8B-Thinking", "Qwen/Qwen3-VL-32B-Thinking", "Qwen/Qwen3-VL-235B-A22B-Thinking"),
        layout=replace(INSTRUCT.layout, reply="<think>\n"),
        deviations=(
            *INSTRUCT.deviations,
            "the chat template of the thinking checkpoints leaves earlier thoughts out of the history; here they stay, "
            "by the ids that were sampled",
        ),
        unverified="that the reply is opened with `<think>` and a newline, and the sampling for thinking checkpoints: "
        "their chat_template.jinja and generation_config.json could not be read here",
    ),
)
