"""What `dart-agent export --as chat` writes, by TRL's own SFTTrainer: the loss of a tiny Qwen2.5-VL falls."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dart_agent.commands import agent_cli
from tests.dart_agent.exports.test_chat_export import record
from tests.hubs.conftest import ROOT
from tests.hubs.test_trl_hub import image_processors  # noqa: F401  fixture

pytestmark = [pytest.mark.hubs]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """A tiny Qwen2.5-VL that has learnt nothing."""
    from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model

    config = TinyModelConfig(layers=2, vision_layers=1)
    return build_tiny_model(tmp_path_factory.mktemp("tiny"), seed=1, config=config)


@pytest.mark.parametrize("kind", ["chat", "chat-inline"])
def test_the_recipe_of_the_docs_learns_from_an_export(tmp_path, tiny, kind):
    for seed in range(8):
        record(tmp_path / "e", "s/one", seed)
    arguments = ["export", str(tmp_path / "e"), str(tmp_path / "o"), "--as", kind, "--min-score", "1"]
    CliRunner().invoke(agent_cli.app, arguments, catch_exceptions=False)
    page = (ROOT / "docs" / "guides" / "open_data.md").read_text()
    code, inline = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    here = f'"{tmp_path / "sft"}", use_cpu=True, bf16=False, max_steps=12, per_device_train_batch_size=4, '
    here += 'learning_rate=3e-3, logging_steps=1, report_to=[], save_strategy="no", lr_scheduler_type="constant"'
    code = code.replace('"runs/sft"', here).replace("Qwen/Qwen2.5-VL-3B-Instruct", str(tiny))
    if kind == "chat-inline":
        before, end = code.split("model = ", 1)
        code = before + inline.replace("runs/inline", str(tmp_path / "o")) + "model = " + end
        code = code.replace('load_dataset("runs/chat", split="train")', "inline")
    names: dict = {}
    exec(compile(code.replace("runs/chat", str(tmp_path / "o")), "open_data.md", "exec"), names)
    losses = [entry["loss"] for entry in names["trainer"].state.log_history if "loss" in entry]
    assert len(losses) == 12 and sum(losses[-3:]) < 0.7 * sum(losses[:3]), losses
