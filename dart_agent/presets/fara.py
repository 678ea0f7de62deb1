"""Fara-7B: a browser's agent, asked as microsoft/fara asks it."""

from dart_agent.presets.preset import Layout, Preset, text

PRESETS = (
    Preset(
        name="fara-7b",
        checkpoints=("microsoft/Fara-7B",),
        source="microsoft/fara@3f3f1fd src/fara/{fara_agent,_prompts}.py, qwen_helpers/fncall_prompt.py",
        compared="system text made by get_computer_use_system_prompt for 1440x900; messages as fara_agent orders them",
        families=("qwen2_5_vl",),
        format="qwen:fara",
        layout=Layout(
            system=text("fara_system"),
            first="{image}{instruction}",
            later="{image}Here is the next screenshot. Think about what to do next.",
        ),
        screenshots=3,
        pixels=(3136, 12_845_056),
        deviations=(
            "the agent names the browser's address before each later screenshot; a desktop knows none",
            "visit_url, web_search and history_back are pressed as keys, so a browser must have the focus",
            "scroll turns the wheel by `pixels`; the agent always scrolls one page",
            "the thought of the last step is the agent's answer; here terminate answers nothing",
            "the published viewport is 1440x900",
        ),
        unverified="the longest response: the agent sends none",
    ),
)
