"""`integrations/trl` by TRL's own GRPOTrainer, with a tiny Qwen2.5-VL on drawn desktops."""

from __future__ import annotations

import asyncio
import functools
import inspect
import io
import math
import re
import sys

import numpy as np
import pytest

from dart_gym.core.outcomes import TerminalState
from tests.hubs.conftest import ROOT
from tests.hubs.seeing_oracle import target

pytestmark = [pytest.mark.hubs]
START = '<tool_call>\n{"name": "click", "arguments": {"x": '
ROWS = [{"prompt": [{"role": "user", "content": "Do it. "}], "task": "fake/two-steps", "seed": seed} for seed in (0, 1)]


@pytest.fixture
async def cluster(start_server):
    """A desktop for each rollout of a batch."""
    return await start_server(listen="ws://127.0.0.1:0", open=True, desktops=4, grace_s=0.1)


@pytest.fixture
def make_tools(cluster):
    from dart_gym_trl import DesktopTools

    return functools.partial(DesktopTools, url=cluster.url)


@pytest.fixture(scope="module", autouse=True)
def image_processors():
    """Makes torchvision importable beside any build of torch: of its operators the processors need none."""
    import torch

    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float threshold) -> Tensor")


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """A tiny Qwen2.5-VL that has learnt to call `click` somewhere, in a directory; with Qwen3-VL's chat template."""
    import torch
    from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration
    from trl.chat_template_utils import qwen3_vl_chat_template

    from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model

    words = (START, ', "y": ', "}}\n</tool_call>", "<tool_response>", "</tool_response>", '"type"', '"description"')
    shape = TinyModelConfig(layers=2, vision_layers=1, extra_words=words, max_length=8192)
    directory = build_tiny_model(tmp_path_factory.mktemp("tiny"), seed=3, config=shape)
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(directory)
    processor = AutoProcessor.from_pretrained(directory)
    processor.chat_template = qwen3_vl_chat_template
    asked = processor.tokenizer("<|im_end|>\n<|im_start|>assistant\n")["input_ids"]
    optimizer, rng = torch.optim.AdamW(model.parameters(), 3e-3), np.random.default_rng(0)
    for _ in range(150):  # whatever stands before: a click somewhere
        x, y = rng.integers(0, 160, 2)
        reply = processor.tokenizer(f'{START}{x}, "y": {y}}}}}\n</tool_call><|im_end|>')["input_ids"]
        before = rng.integers(20, 400, (8, 200)).tolist()
        ids = torch.tensor([[*noise, *asked, *reply] for noise in before])
        labels = ids.clone()
        labels[:, : -len(reply)] = -100
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(directory)
    processor.save_pretrained(directory)
    return directory


async def test_grpo_trains_on_drawn_desktops_with_their_screenshots(taught, make_tools, cluster, tmp_path, until):
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    batches = []

    class Watched(GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            made = super()._generate_and_score_completions(inputs)
            batches.append((made, [environment._seen for environment in self.environments]))
            asyncio.run(until(lambda: not cluster.status()["sessions"]))  # nothing is held while it computes its update
            return made

    def acted(environments, **_):
        return [float(environment._seen.step_index) for environment in environments]

    config = GRPOConfig(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, max_steps=3, per_device_train_batch_size=4,
        num_generations=4, max_completion_length=600, max_tool_calling_iterations=3, logging_steps=1, report_to=[],
        learning_rate=1e-4, temperature=0.7, save_strategy="no", seed=1,
    )  # fmt: skip
    options = {"environment_factory": make_tools, "reward_funcs": [acted], "train_dataset": Dataset.from_list(ROWS)}
    trainer = Watched(str(taught), args=config, **options)
    await asyncio.to_thread(trainer.train)
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(logged) == 3 and all(math.isfinite(entry["loss"]) for entry in logged)
    assert any(entry["grad_norm"] > 0 for entry in logged)
    for made, ends in batches:  # the first screen, and one after each step that did not end the episode
        assert made["num_images"] == [end.step_index + (end.terminal != TerminalState.DONE) for end in ends]
        assert len(made["image_grid_thw"]) == sum(made["num_images"])
    assert max(max(made["num_images"]) for made, _ in batches) >= 3


def play(tools, seed: int, act: bool) -> float | None:
    """An episode as TRL plays it, by an oracle that sees what a model is shown, or by one that does nothing."""
    image, text = tools.reset(task="fake/two-steps", seed=seed, prompt=[])
    for step in range(2 if act else 0):
        png = io.BytesIO()
        image["image"].save(png, "PNG")
        image, *_ = tools.click(*target(text["text"], png.getvalue(), step))
    return tools.get_reward()


async def test_an_oracle_scores_1_and_nothing_0_two_at_once(make_tools, cluster, until):
    both = (asyncio.to_thread(play, make_tools(), 7, act) for act in (True, False))
    assert await asyncio.gather(*both) == [1.0, 0.0]
    await until(lambda: not cluster.status()["sessions"])


async def test_a_fault_has_no_reward_and_the_next_episode_is_sound(make_tools, desktops):
    tools = make_tools()
    await asyncio.to_thread(tools.reset, task="fake/two-steps", seed=1)
    desktops[-1].crash()
    assert "ended" in (await asyncio.to_thread(tools.wait))[0]["text"]
    assert await asyncio.to_thread(tools.get_reward) is None
    assert await asyncio.to_thread(play, tools, 2, True) == 1.0


def test_the_tools_are_the_actions_and_nothing_else():
    from dart_gym_trl import DesktopTools

    public = {name for name, _ in inspect.getmembers(DesktopTools, inspect.isfunction) if not name.startswith("_")}
    assert public - {"reset", "get_reward"} == {"click", "drag", "scroll", "type", "press", "wait", "done", "fail"}


async def test_wrong_arguments_are_errors_and_the_episode_goes_on(make_tools):
    tools = make_tools()
    await asyncio.to_thread(tools.reset, task="fake/two-steps", seed=1)
    for wrong in (lambda: tools.click("left", 1), lambda: tools.press([]), lambda: tools.press(["__import__"])):
        with pytest.raises(ValueError):
            await asyncio.to_thread(wrong)
    image, text = await asyncio.to_thread(tools.click, 9999, 1)
    assert image["type"] == "image" and "outside" in text["text"]


PROGRAM = """
import sys
from dart_gym_trl import DesktopTools
DesktopTools(sys.argv[1]).reset(task="fake/two-steps", seed=1)
print("playing", flush=True)
sys.stdin.read()
"""


async def test_the_desktop_of_a_killed_trainer_is_given_back(start_client, cluster, until):
    client = start_client(PROGRAM, cluster.url)
    assert await asyncio.to_thread(client.stdout.readline) == "playing\n"
    assert cluster.status()["sessions"] == 1
    client.kill()
    await until(lambda: not cluster.status()["sessions"])


async def test_the_run_of_the_readme_works(taught, tmp_path, one_private_cluster):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "integrations/trl/README.md").read_text(), re.DOTALL)
    here = f'"{tmp_path}", use_cpu=True, bf16=False, report_to=[]'
    code = code.replace('"runs/trl"', here).replace("Qwen/Qwen3-VL-2B-Instruct", str(taught))
    names: dict = {}
    await asyncio.to_thread(exec, compile(code, "README.md", "exec"), names)
    assert all(math.isfinite(entry["loss"]) for entry in names["trainer"].state.log_history if "loss" in entry)


def test_without_trl_the_import_says_what_to_install(without):
    assert "TRL is not installed; next step: pip install './integrations/trl'" in without(
        "trl", "integrations/trl", "dart_gym_trl"
    )
