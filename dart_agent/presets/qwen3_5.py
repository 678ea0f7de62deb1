"""Qwen3.5, as OSWorld's agent `qwen35vl_agent` asks it: calls in tags."""

from dart_agent.presets.preset import Layout, Preset, text
from dart_agent.presets.qwen3_vl import MOST_PIXELS, MOVE

PRESETS = (
    Preset(
        name="qwen3.5",
        checkpoints=("Qwen/Qwen3.5-9B", "Qwen/Qwen3.5-27B", "Qwen/Qwen3.5-35B-A3B", "Qwen/Qwen3.5-397B-A17B"),
        source="qwen35vl_agent.py in mrwwk/DeskCraft@3e11457 mm_agents, a copy of OSWorld's",
        compared="messages made by qwen35vl_agent.py, steps 1, 3 and 23",
        families=("qwen3_5", "qwen3_5_moe"),
        format="qwen:3.5",
        layout=Layout(
            system=text("qwen3_5_system"),
            first="{image}" + MOVE,
            later="<tool_response>\n{image}\n</tool_response>",
            gone="This screenshot has been collapsed.",
            history="sliding",
            parts=(("action", r"^\s*[Aa]ction:([^\n]*)"),),
        ),
        screenshots=20,
        texts=100,
        pixels=(3136, MOST_PIXELS),
        top_p=0.9,
        max_tokens=32768,
        deviations=(
            "the agent ends an episode with DONE even for terminate(status=failure); here that is Fail",
            "the agent scrolls by `pixels` notches, sideways never; here a notch is 100 of them",
            "the published prompt has a quotation mark too many after the date; it is kept",
        ),
        unverified="that the copy of OSWorld's agent is unchanged, the names of the checkpoints, and how the chat "
        "template opens the reply with thinking off: neither could be read at the publisher's",
    ),
)
