"""Qwen2.5-VL, as its cookbook of computer use asks it."""

from dart_agent.presets.preset import Layout, Preset, text

PRESETS = (
    Preset(
        name="qwen2.5-vl",
        checkpoints=("Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen2.5-VL-32B-Instruct", "Qwen/Qwen2.5-VL-72B-Instruct"),
        source="QwenLM/Qwen3-VL@9658872 cookbooks/utils/agent_function_call.py (class ComputerUse, of Qwen2.5-VL); "
        "QwenLM/Qwen-Agent@31a4d36 qwen_agent/llm/fncall_prompts/nous_fncall_prompt.py",
        compared="system text made by ComputerUse and NousFnCallPrompt; the text before the image as in copies of "
        "cookbooks/computer_use.ipynb",
        families=("qwen2_5_vl",),
        format="qwen:2.5",
        layout=Layout(system=text("qwen2_5_vl_system"), first="{instruction}{image}"),
        pixels=(3136, 12_845_056),
        deviations=(
            "the cookbook asks one question about one screenshot: how a history is shown is ours, newest 5 screenshots",
            "the size in the prompt is that of the newest screenshot after resizing, as in the cookbook",
        ),
        unverified="temperature and longest response: the cookbook's notebook could not be read here",
    ),
)
