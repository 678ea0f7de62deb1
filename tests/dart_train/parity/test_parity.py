"""`dart-train parity`: what it compares, what it finds, what it says."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from dart_agent.engines.base.engine import EngineError
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
from dart_gym.core.errors import ConfigurationError
from dart_train.commands.train_cli import app
from dart_train.core.train_errors import TrainingError
from dart_train.parity import check_model
from dart_train.parity.check_model import compare
from dart_train.parity.gap_table import EXACT, HALF, expected_gap, gap
from dart_train.parity.recorded_conversation import Shape
from dart_train.rollout.settings.rollout_config import EngineConfig
from scripts.failures.situations import Situation
from scripts.failures.stub_server import Protocol, stub

SMALL = Shape(screen=(112, 84), steps=3, tokens=6)


def test_a_gap_names_the_first_token_that_parts():
    one, other = [[-1.0, -2.0], [-3.0]], [[-1.0, -2.0 + 5e-6], [-3.5]]
    found = gap("own", one, "packed", other, EXACT)
    assert found.pair == "own_vs_packed" and not found.agrees
    assert found.parts == (1, 0, -3.0, -3.5)
    assert found.largest == 0.5 and found.mean == pytest.approx((5e-6 + 0.5) / 3)
    assert gap("own", one, "packed", one, EXACT).agrees


def test_what_is_no_number_never_agrees():
    found = gap("own", [[-1.0, -2.0]], "engine", [[math.nan, -2.0]], HALF)
    assert found.parts is not None and found.parts[:2] == (0, 0) and math.isnan(found.largest)


def test_in_half_precision_a_mean_that_no_rounding_explains_is_seen():
    found = gap("own", [[-1.0, -2.0]], "engine", [[-1.2, -2.2]], HALF)
    assert found.parts is None and not found.agrees


def test_large_models_and_half_precision_may_be_further_off():
    assert expected_gap(layers=4, half=False) < expected_gap(layers=28, half=False) < expected_gap(layers=4, half=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    config = TinyModelConfig(
        family="qwen3_vl", hidden_size=32, layers=2, vision_hidden_size=32, vision_layers=2, temporal_patch_size=2
    )
    return build_tiny_model(tmp_path_factory.mktemp("parity"), config=config)


@pytest.mark.thorough
@pytest.mark.train
def test_the_command_prints_a_table_and_writes_the_keys(model, tmp_path):
    target = tmp_path / "parity.json"
    done = CliRunner().invoke(
        app, ["parity", str(model), "--screen", "112x84", "--steps", "3", "--json", str(target)], env={"COLUMNS": "160"}
    )
    assert done.exit_code == 0, done.output
    assert "own_vs_packed_bfloat16" in done.output and "first token where they part" in done.output
    keys = json.loads(target.read_text())
    exact = {key: value for key, value in keys.items() if "bfloat16" not in key}
    assert exact and max(exact.values()) <= EXACT
    assert all(key.startswith("parity.qwen3_vl.") for key in keys)


@pytest.fixture(scope="module")
def served(model, tmp_path_factory) -> Iterator[str]:
    """The address of an engine in a process of its own that serves other weights than the model's."""
    other = tmp_path_factory.mktemp("other")
    shutil.copytree(model, other, dirs_exist_ok=True)
    from safetensors.torch import load_file, save_file

    weights = load_file(other / "model.safetensors")
    weights["lm_head.weight"] = weights["lm_head.weight"] * 2
    save_file(weights, other / "model.safetensors", {"format": "pt"})
    url = f"ws+unix://{tmp_path_factory.mktemp('s')}/e.sock"
    argv = [sys.executable, "-m", "dart_agent.engines.remote.engine_server", "--model", str(other), "--listen", url]
    with subprocess.Popen([*argv, "--threads", "1"]) as process:
        yield url
        process.terminate()


@pytest.mark.thorough
@pytest.mark.train
@pytest.mark.process
def test_an_engine_with_other_weights_is_found_out(model, served):
    async def ready() -> None:
        from dart_agent.engines.engine_kinds import connect_engine

        client = connect_engine(served, model)
        for _ in range(600):
            try:
                await client.info()
                break
            except EngineError:  # not listening yet
                await asyncio.sleep(0.1)
        await client.close()

    asyncio.run(ready())
    found = compare(model, engine=served, shape=SMALL, dtypes=(torch.float32,))
    wrong = {item.pair: item for item in found.gaps if "engine" in item.pair}
    assert wrong and all(item.mean > 10 * EXACT for item in wrong.values())
    assert all(item.agrees for item in found.gaps if "engine" not in item.pair)


@pytest.mark.train
def test_bad_input_is_refused_in_one_message(model, tmp_path):
    with pytest.raises(ConfigurationError, match="config.json cannot be read"):
        compare(tmp_path)
    if not torch.cuda.is_available():
        with pytest.raises(TrainingError, match="torch finds no CUDA device"):
            compare(model, device="cuda")
    with pytest.raises(ConfigurationError, match="no address of an engine"):
        compare(model, engine="ftp://somewhere")
    done = CliRunner().invoke(app, ["parity", str(model), "--screen", "large"])
    assert done.exit_code == 2 and "not WIDTHxHEIGHT" in done.output


@pytest.mark.slow
@pytest.mark.train
@pytest.mark.process
def test_an_engine_is_started_for_the_comparison_and_ended(model):
    kind = "dart_agent.engines.kinds.transformers_server:TransformersServer"
    options = {"engine": kind, "engine_options": {"threads": 1}, "shape": SMALL, "dtypes": (torch.float32,)}
    found = compare(model, **options, engine_dtype="float32")
    engines = [item for item in found.gaps if "engine" in item.pair]
    assert engines and max(item.largest for item in engines) <= EXACT
    assert {item.expected for item in engines} == {EXACT}


def test_a_running_engine_may_differ_as_much_as_parity_allows():
    """With less than that a sound engine is taken for a wrong one, and a version is skipped for good."""
    assert EngineConfig().fingerprint_tolerance == HALF


@pytest.mark.thorough
@pytest.mark.parametrize("situation", [Situation.SERVER_ERROR, Situation.UNAUTHORIZED, Situation.HTML, Situation.HANGS])
def test_a_server_is_asked_before_a_model_is_loaded(situation, model, monkeypatch):
    monkeypatch.setattr(check_model, "compare", lambda *_, **__: pytest.fail("the model was loaded first"))
    with stub(Protocol.HTTP, situation) as server:
        given = ["parity", str(model), "--engine", f"http://127.0.0.1:{server.port}", "--timeout", "0.5"]
        done = CliRunner().invoke(app, given)
    assert isinstance(done.exception, EngineError), done.output
