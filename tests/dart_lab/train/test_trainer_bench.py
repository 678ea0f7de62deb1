"""The trainer's benchmark: it measures, checks itself, and knows Qwen2.5-VL's shapes."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from dart_agent.models.model_tokens import ModelTokens
from dart_lab.train import bench_models
from dart_lab.train import trainer_bench as bench
from dart_lab.train.bench_models import Cost, qwen_config, with_lora
from dart_lab.train.made_up_steps import Window
from dart_lab.train.train_commands import app
from dart_train.core.device_peaks import peak_flops
from dart_train.core.train_errors import DartTrainError

pytestmark = pytest.mark.train


@pytest.mark.scale
def test_measures_and_writes_the_keys(tmp_path):
    path = tmp_path / "trainer.json"
    arguments = [
        "trainer",
        "--steps",
        "7",
        "--screen",
        "112x84",
        "--response",
        "4",
        "--repeat",
        "1",
        "--json",
        str(path),
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    written = json.loads(path.read_text())
    keys = written["keys"]
    assert written["bench"] == "trainer"
    assert {"merged_speedup_window5", "merged_speedup_block", "tokens_per_s", "peak_mb"} <= keys.keys()
    assert (keys["window5_rows"], keys["window5_rows_separate"]) == (3, 7)
    assert (keys["block_rows"], keys["narrow_block_rows"]) == (1, 2)
    assert keys["merged_speedup_block"] > 1
    assert 0 < keys["dropped_steps_ratio_recorded"] < 1 and 0 < keys["dropped_steps_ratio"] < 1.1  # 0.8: a busy machine
    assert keys["feature_cache_growth"] == 1.0 and keys["feature_cache_peak_mb"] <= bench.FEATURE_BUDGET_MB


def test_ways_that_disagree_are_no_measurement():
    bench.check_equal("block", 1.0, 1.00001, 1e-4)
    for wrong in (1.1, float("nan")):
        with pytest.raises(DartTrainError, match="its speed means nothing"):
            bench.check_equal("block", 1.0, wrong, 1e-4)


@pytest.mark.parametrize("arguments", [["--device", "tpu"], ["--model", "70b"], ["--screen", "big"]])
def test_unknown_options_are_refused(arguments):
    assert CliRunner().invoke(app, ["trainer", *arguments]).exit_code == 2


def test_without_a_gpu_it_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DartTrainError, match="leave --device out"):
        bench.measure(bench.Options(device="cuda", model="3b"), print)


def test_windows():
    assert [Window(5).first(turn) for turn in range(8)] == [0, 0, 0, 0, 0, 1, 2, 3]
    assert [Window(5, block=4).first(turn) for turn in range(10)] == [0] * 5 + [4] * 4 + [8]
    block = bench.WINDOWS["block"]
    assert all(min(turn + 1, 5) <= turn + 1 - block.first(turn) <= 9 for turn in range(40))


@pytest.mark.parametrize(("size", "billions"), [("3b", 3.75), ("7b", 8.29)])
def test_published_shapes(size, billions, model_dir):
    """As many parameters as Qwen2.5-VL has, and adapters on the language model alone."""
    from transformers import AutoModelForImageTextToText

    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(qwen_config(size, ModelTokens.load(model_dir)))
        assert sum(item.numel() for item in model.parameters()) / 1e9 == pytest.approx(billions, abs=0.01)
        cost = Cost.of(model)
        adapted = with_lora(model)
    trained = [name for name, item in adapted.named_parameters() if item.requires_grad]
    assert trained and all("lora" in name and "visual" not in name for name in trained)
    # A screenshot of 1932x1092: 2691 tokens of the language model, four patches each in the tower.
    text, tower = cost.forward([2691], 0, []), cost.forward([], 0, [4 * 2691])
    assert 0.2 < tower / text < 2.0


def test_peak_of_known_devices():
    assert peak_flops("NVIDIA H200") == peak_flops("NVIDIA H100 80GB HBM3") == 989e12
    assert peak_flops("Some GPU") is None


@pytest.mark.thorough
@pytest.mark.parametrize(("size", "adapters"), [pytest.param("3b", False, marks=pytest.mark.slow), ("7b", True)])
def test_large_models_take_the_same_way(size, adapters, monkeypatch, tmp_path):
    """bfloat16, checkpointing, adapters, a frozen tower: all of it with fewer and narrower layers."""
    small = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 128}
    monkeypatch.setitem(bench_models.TEXT, size, {**small, "hidden_size": 256, "vocab_size": 2000})
    vision = {"hidden_size": 64, "depth": 2, "num_heads": 4, "intermediate_size": 96, "fullatt_block_indexes": [1]}
    monkeypatch.setattr(bench_models, "VISION", bench_models.VISION | vision)
    options = bench.Options(model=size, steps=7, screen=(84, 56), response=4, micro_batch_tokens=64)
    own = bench.Workbench(options, tmp_path)
    assert own.trained_tower is not adapters
    assert next(own.model.parameters()).dtype is torch.bfloat16
    samples = own.samples(bench.WINDOWS["window5"])
    separate, merged = (own.run(samples, merged=merged) for merged in (False, True))
    bench.check_equal("window5", separate.loss, merged.loss, bench.TOLERANCE[torch.bfloat16])
    assert merged.flops < separate.flops
    trained = [name for name, item in own.model.named_parameters() if item.grad is not None and item.grad.any()]
    assert all("lora" in name for name in trained) if adapters else any("visual" in name for name in trained)
