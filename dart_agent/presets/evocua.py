"""EvoCUA in its two styles: S1 writes code as OpenCUA does, S2 calls a tool as Qwen3-VL does."""

from dart_agent.presets.opencua import BY_ACTIONS, SECTIONS, TASK
from dart_agent.presets.preset import Layout, Preset, text
from dart_agent.presets.qwen3_vl import INSTRUCT, MOST_PIXELS, MOVE

_SOURCE = "meituan/EvoCUA@4a0ad5f mm_agents/evocua/{evocua_agent,prompts,utils}.py, run_multienv_evocua.py, README.md"

PRESETS = (
    Preset(
        name="evocua-s1",
        checkpoints=("meituan/EvoCUA-8B-20260105", "meituan/EvoCUA-32B-20260105"),
        source=_SOURCE,
        compared="messages made by evocua_agent.py with prompt_style=S1 and 3 turns, steps 1 and 7",
        families=("qwen3_vl",),
        format="opencua:qwen25",
        layout=Layout(
            system=text("opencua_72b_system"), first=TASK, history="latest", remembered=BY_ACTIONS, parts=SECTIONS
        ),
        screenshots=3,
        pixels=(3136, 12_845_056),
        top_p=0.9,
        max_tokens=32768,
        deviations=(
            "coordinates are those of the image that the model sees; S1 of the publisher computes them for 28",
        ),
        unverified="which checkpoints were trained in this style, and with how many turns: README.md runs S2 only",
    ),
    Preset(
        name="evocua-s2",
        checkpoints=("meituan/EvoCUA-8B-20260105", "meituan/EvoCUA-32B-20260105"),
        source=_SOURCE,
        compared="messages made by evocua_agent.py with prompt_style=S2, steps 1 and 7",
        families=("qwen3_vl",),
        format="qwen:3",
        layout=Layout(
            system=text("evocua_s2_system"),
            first="{image}" + MOVE,
            history="sliding",
            parts=INSTRUCT.layout.parts if INSTRUCT.layout else (),
        ),
        screenshots=5,
        texts=4,
        pixels=(3136, MOST_PIXELS),
        temperature=0.01,
        top_p=0.9,
        max_tokens=32768,
        deviations=(
            "README.md evaluates with temperature 0.01 and 4 turns, the runner's are 0 and 3: here README.md's",
            "the agent reads the text to type through Python's escapes once more, and types it key by key",
            "at the last step the agent answers FAIL by itself; here the episode ends at its step limit",
        ),
    ),
)
