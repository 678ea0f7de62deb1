"""OpenCUA-7B, -32B and -72B, as OSWorld's agent `opencua_agent` asks them."""

from dart_agent.presets.preset import Layout, Preset, text

TASK = """{image}# Task Instruction:
{instruction}

Please generate the next move according to the screenshot, task instruction and previous steps (if provided).
"""
SECTIONS = (
    ("thought", r"^##\s*Thought\s*:?[\n\r]+(.*?)(?=^##|\Z)"),
    ("action", r"^##\s*Action\s*:?[\n\r]+(.*?)(?=^##|\Z)"),
)
BY_ACTIONS = "# Step {step}:\n## Action:\n{action}\n"
_SOURCE = (
    "OSWorld mm_agents/opencua/opencua_agent.py, prompts.py and run_multienv_opencua.py (copy in "
    "mrwwk/DeskCraft@3e11457); xlang-ai/OpenCUA@1d70f20 model/README.md"
)
_SHARED = (
    "the tokenizer and the chat template are Kimi-VL's: the model is asked through a server's chat completions",
    "computer.wait() is the wait of OSWorld's step; the prompt promises 20 seconds; here it is 2",
    "the agent runs whatever Python the model writes; here only calls of known names with literals are read",
)

PRESETS = (
    Preset(
        name="opencua-7b",
        checkpoints=("xlangai/OpenCUA-7B", "xlangai/OpenCUA-32B"),
        source=_SOURCE,
        compared="messages made by opencua_agent.py with --use_old_sys_prompt, steps 1 and 7",
        policy="chat",
        families=("opencua", "qwen2_5_vl"),
        format="opencua:qwen25",
        layout=Layout(
            system=text("opencua_7b_system"), first=TASK, history="latest", remembered=BY_ACTIONS, parts=SECTIONS
        ),
        screenshots=3,
        pixels=(3136, 12_845_056),
        top_p=0.9,
        stop=(),
        deviations=(*_SHARED, "AgentNetBench's prompts (evaluation/agentnetbench) have no password and other levels"),
    ),
    Preset(
        name="opencua-72b",
        checkpoints=("xlangai/OpenCUA-72B",),
        source=_SOURCE,
        compared="messages made by opencua_agent.py, steps 1 and 7",
        policy="chat",
        families=("opencua", "qwen2_5_vl"),
        format="opencua:qwen25",
        layout=Layout(
            system=text("opencua_72b_system"),
            first=TASK,
            history="latest",
            remembered="# Step {step}:\n## Thought:\n{thought}\n\n## Action:\n{action}\n",
            parts=SECTIONS,
        ),
        screenshots=3,
        pixels=(3136, 12_845_056),
        top_p=0.9,
        stop=(),
        deviations=(*_SHARED, "the runner remembers actions (--history_type action_history) unless told otherwise"),
        unverified="that the 72B's published scores were made with the history of thoughts",
    ),
)
