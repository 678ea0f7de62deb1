"""What a plan says of a model of each family is what its engine and trainer then hold: counted, byte by byte."""

import numpy as np
import pytest

from dart_agent.engines.base.engine import Prompt, Sampling
from dart_agent.engines.embedded.decoder import Decoder
from dart_agent.engines.embedded.qwen_runner import QwenRunner
from dart_agent.models.families.family_table import FAMILIES
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
from dart_train.config.run_config import load_config
from dart_train.plan.run_plan import Machine, plan
from dart_train.plan.step_passes import Assumed
from dart_train.trainer.memory.model_size import ModelSize
from dart_train.trainer.weights.adapters import LoraSettings, add_adapter
from tests.dart_train.plan.test_run_plan import ROOT

pytestmark = pytest.mark.train


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, tmp_path_factory):
    """(directory, runner) of a tiny model with sides of unlike lengths."""
    config = TinyModelConfig(family=request.param, layers=4, vision_layers=1)
    directory = build_tiny_model(tmp_path_factory.mktemp(request.param), config=config)
    return directory, QwenRunner.load(directory, VisionSpec.from_dir(directory))


def test_weights_and_adapters_are_counted(model):
    directory, runner = model
    size = ModelSize.of_directory(directory)
    assert size.total == sum(weight.numel() for weight in runner.model.parameters())
    adapted = add_adapter(runner.model, LoraSettings(r=3))
    trained = sum(weight.numel() for weight in adapted.parameters() if weight.requires_grad)
    adapted.unload()
    assert size.adapter(3) == trained


def test_an_engine_s_cache_is_counted(model, monkeypatch):
    """Keys and values grow with the tokens, what recurrent layers remember does not."""
    directory, runner = model
    held: list[int] = []
    prefill = Decoder.prefill

    def counted(*given):
        state, hidden = prefill(*given)
        held.append(sum(part.nbytes for part in (*state.keys, *state.values)))
        return state, hidden

    monkeypatch.setattr(Decoder, "prefill", counted)
    for length in (5, 12):
        ids = tuple(int(i) for i in np.arange(length) + 5)
        runner.sample([Prompt(ids, ())], [Sampling(max_tokens=4, seed=1)])
    settings = [f"model.path={directory}", "rollout.engine.kind=transformers"]
    config = load_config(ROOT / "configs" / "quickstart.yaml", settings)
    engine = plan(config, ModelSize.of_directory(directory), Machine(host_bytes=1 << 40), Assumed()).engine
    assert held == [engine.memory + length * engine.token for length in (5 + 4, 12 + 4)]
    assert bool(engine.memory) == hasattr(runner.model.model.language_model.layers[0], "linear_attn")
