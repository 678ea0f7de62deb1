"""Trained tokens are computed by the experts that the engine took, in every layout, and routers learn from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dart_agent.engines.base import expert_routing
from dart_agent.engines.base.engine import Prompt, Sampling
from dart_agent.engines.embedded.qwen_runner import QwenRunner
from dart_agent.episodes.screenshots import image_hash
from dart_agent.models.families.family_table import FAMILIES
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
from dart_lab.train.made_up_steps import Window, record_steps
from dart_train.core.train_errors import TrainingError
from dart_train.trainer.attention.routing_replay import Replay, experts_of_a_token
from dart_train.trainer.batches.collator import Collator, ImageCache, Sample
from dart_train.trainer.policy_logprobs import response_logprobs
from dart_train.trainer.weights.model_loading import load_model

pytestmark = pytest.mark.train

LAYERS, EXPERTS = 2, 4
LAYOUTS: tuple[dict[str, Any], ...] = (
    {"share_prompts": False, "merge_prefixes": False}, {}, {"pack_rows": True}, {"padding_side": "left"},
)  # fmt: skip


class Mixture:
    """A tiny mixture with two rollouts of three steps that begin alike, as its engine routes them."""

    def __init__(self, family: str, directory: Path) -> None:
        shape = TinyModelConfig(
            family=family, hidden_size=32, layers=LAYERS, vision_hidden_size=32, vision_layers=1, experts=EXPERTS,
            matrix_std=0.15, edge_std=0.3,
        )  # fmt: skip
        self.dir = build_tiny_model(directory, seed=5, config=shape)
        self.tokens, self.vision = ModelTokens.load(self.dir), VisionSpec.from_dir(self.dir)
        rng = np.random.default_rng(1)
        images = [rng.integers(0, 256, (96, 64, 3), dtype=np.uint8) for _ in range(3)]
        self.screens = {image_hash(image): image for image in images}
        self.model = load_model(self.dir).eval()
        self.width = experts_of_a_token(self.model.config.text_config)
        self.samples = [self._routed(sample) for number in range(2) for sample in self._rollout(number)]

    def _rollout(self, number: int) -> list[Sample]:
        names = list(self.screens)
        pads = [self.vision.num_tokens(self.screens[name]) for name in names]
        responses = [self.tokens.response(f"Action: click(start_box='({step},{number + 7})')") for step in range(3)]
        steps = record_steps(self.tokens, "Click on the tab", names, pads, responses, Window(4))
        return [Sample.from_step(step, trajectory=number) for step in steps]

    def _routed(self, sample: Sample) -> Sample:
        """With the experts that the engine reports of the response."""
        prompt = Prompt(sample.prompt_ids, tuple(self.screens[name] for name in sample.image_hashes))
        asked = Sampling(given_ids=sample.response_ids, suppressed_ids=self.tokens.suppressed_ids, routing=True)
        runner = QwenRunner.load(self.dir, self.vision)
        (row,) = runner.sample([prompt], [asked])
        return replace(sample, routing=row.routing)

    def others(self) -> list[Sample]:
        """The samples as if their tokens had been routed by chance; those that begin a response alike are alike."""
        rng = np.random.default_rng(2)
        first = rng.permuted(np.tile(np.arange(EXPERTS), (LAYERS, 1)), axis=1)[:, :2]
        found = []
        for sample in self.samples:
            tokens = len(sample.response_ids)
            chosen = rng.permuted(np.tile(np.arange(EXPERTS), (tokens, LAYERS, 1)), axis=2)[:, :, :2]
            chosen[0] = first
            found.append(replace(sample, routing=expert_routing.pack(chosen)))
        return found

    def run(self, samples: list[Sample], width: int, **layout: Any) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Log-probabilities of each sample, and the gradient of their sum."""
        collator = Collator(
            self.tokens, self.vision, ImageCache(self.screens.__getitem__), routing_width=width, **layout
        )
        found: dict[int, Tensor] = {}
        for batch in collator.micro_batches(samples, 700):
            logprobs, _ = response_logprobs(self.model, batch, self.tokens.suppressed_ids)
            logprobs.sum().backward()
            for row, place in enumerate(batch.sample_index.tolist()):
                found[place] = logprobs[row][batch.mask[row]].detach()
        gradients = {name: item.grad.clone() for name, item in self.model.named_parameters() if item.grad is not None}
        self.model.zero_grad()
        return [found[place] for place in range(len(samples))], gradients


@pytest.fixture(scope="module", params=[name for name, family in FAMILIES.items() if family.mixture])
def mixture(request, tmp_path_factory) -> Mixture:
    return Mixture(request.param, tmp_path_factory.mktemp(request.param))


def assert_close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


def test_the_engine_s_experts_are_the_trainer_s_where_both_compute_alike(mixture):
    for sample in mixture.samples:
        assert len(sample.routing) == expert_routing.size(len(sample.response_ids), mixture.width)
    expected = mixture.run(mixture.samples, 0, **LAYOUTS[0])
    for layout in LAYOUTS:
        assert_close(mixture.run(mixture.samples, mixture.width, **layout), expected)


def test_recorded_experts_compute_in_every_layout_and_beside_checkpointing(mixture):
    """By chance chosen ones give other numbers; gates learn what the chosen ones are worth.

    Steps stay apart: in a row of several, what an earlier response was computed by is seen by the later ones.
    """
    others = mixture.others()
    own, _ = mixture.run(mixture.samples, 0, **LAYOUTS[0])
    expected, gradients = mixture.run(others, mixture.width, **LAYOUTS[0])
    assert all(float((one - two).abs().max()) > 1e-3 for one, two in zip(own, expected, strict=True))
    assert all(float(gradient.abs().max()) > 0 for name, gradient in gradients.items() if ".mlp.gate." in name)
    for layout in LAYOUTS[1:]:
        assert_close(mixture.run(others, mixture.width, **layout | {"merge_prefixes": False}), (expected, gradients))
    merged = mixture.run(others, mixture.width)
    mixture.model.train()
    mixture.model.gradient_checkpointing_enable({"use_reentrant": False})
    assert_close(mixture.run(others, mixture.width), merged)
    mixture.model.gradient_checkpointing_disable()
    mixture.model.eval()


def test_the_numbers_are_those_of_the_experts_that_were_told(mixture, monkeypatch):
    """Beside a router of transformers that is told by hand."""
    sample = replace(mixture.others()[1], trajectory=9)
    (expected,), _ = mixture.run([sample], mixture.width)
    chosen = torch.from_numpy(expert_routing.unpack(sample.routing, len(sample.response_ids))).view(-1, LAYERS, 2)
    places = slice(len(sample.prompt_ids) - 1, len(sample.prompt_ids) - 1 + len(sample.response_ids))
    for number, layer in enumerate(mixture.model.model.language_model.layers):

        def by_hand(hidden: Tensor, gate: Any = layer.mlp.gate, number: int = number) -> tuple[Tensor, Tensor, Tensor]:
            logits = hidden.reshape(-1, hidden.shape[-1]) @ gate.weight.T
            experts = logits.topk(2).indices
            experts[places] = chosen[:, number]
            return logits, logits.gather(-1, experts).softmax(-1), experts

        monkeypatch.setattr(layer.mlp.gate, "forward", by_hand)
    (found,), _ = mixture.run([sample], 0)
    assert_close(found, expected)


def test_a_sample_without_experts_is_routed_by_the_model(mixture):
    """Such as a demonstration, beside others."""
    mixed = [replace(mixture.samples[0], routing=b""), *mixture.others()[1:3]]
    found, _ = mixture.run(mixed, mixture.width, **LAYOUTS[0])
    own, _ = mixture.run(mixture.samples[:1], 0)
    assert_close(found[0], own[0])


def test_experts_of_another_model_are_refused(mixture):
    collator = Collator(
        mixture.tokens, mixture.vision, ImageCache(mixture.screens.__getitem__), routing_width=mixture.width + 2
    )
    problem = collator.problem(mixture.samples[0])
    assert problem is not None and problem.reason == "bad_routing" and "was recorded with another one" in problem.text
    text = mixture.model.model.language_model
    with pytest.raises(TrainingError, match=f"up to number {EXPERTS}, are not those of a model with 2 layers of 4"):
        Replay.of(text, torch.tensor([0]), torch.full((1, mixture.width), EXPERTS))
