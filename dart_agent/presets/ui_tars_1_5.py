"""UI-TARS-1.5-7B, as OSWorld's agent `uitars15_v1` asks it."""

from dart_agent.presets.preset import Layout, Preset, text

PRESETS = (
    Preset(
        name="ui-tars-1.5-7b",
        checkpoints=("ByteDance-Seed/UI-TARS-1.5-7B",),
        source="OSWorld mm_agents/uitars15_v1.py and run_multienv_uitars15_v1.py (copy in mrwwk/DeskCraft@3e11457); "
        "bytedance/UI-TARS@582f3a7 README_coordinates.md",
        compared="messages made by uitars15_v1.py, steps 1 and 7",
        families=("qwen2_5_vl",),
        format="ui_tars:1.5",
        layout=Layout(system="You are a helpful assistant.", first=text("ui_tars_1_5_user")),
        screenshots=5,
        pixels=(100 * 28 * 28, 16384 * 28 * 28),
        temperature=1.0,
        top_p=0.9,
        max_tokens=500,
        deviations=(
            "the runner asks for thoughts in Chinese (--language Chinese); here in English: add --language Chinese",
            "the agent sends frequency_penalty=1, which no engine here has: it would bias log-probabilities",
            "the agent's parser drops unknown actions in silence; `--format ui_tars:osworld-uitars15-v1` does so, too",
            "bytedance/UI-TARS codes/ui_tars/prompt.py has another prompt, Doubao's, with <point> instead of boxes",
            "DART's prompt adds a line with the desktop's password: that is `--style ui_tars` without a preset",
        ),
    ),
)
