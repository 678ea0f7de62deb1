"""Tiny models of every family with samples of several images, rows that branch, and windows that slide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageTextToText

from dart_agent.episodes.screenshots import image_hash
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
from dart_lab.train.made_up_steps import Window, record_steps
from dart_train.trainer.attention.model_attention import as_published, take_over
from dart_train.trainer.batches.collator import Collator, ImageCache, Sample
from dart_train.trainer.policy_logprobs import token_logprobs
from dart_train.trainer.weights.model_loading import load_model


class Family:
    """A tiny model of a family with what its training needs."""

    def __init__(self, name: str, directory: Path, **values: Any) -> None:
        config = TinyModelConfig(
            family=name, hidden_size=32, layers=3, intermediate_size=64, vision_hidden_size=32, vision_layers=2,
            vision_intermediate_size=64, temporal_patch_size=2, window=2, matrix_std=0.15, edge_std=0.3, **values,
        )  # fmt: skip
        self.dir = build_tiny_model(directory, seed=3, config=config)
        self.model = load_model(self.dir).eval()
        self.tokens, self.vision = ModelTokens.load(self.dir), VisionSpec.from_dir(self.dir)
        rng = np.random.default_rng(1)
        sizes = [(140, 84), (84, 84), (112, 196), (84, 112), (56, 140), (84, 84)]
        images = [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]
        self.screens = {image_hash(image): image for image in images}

    def rebuild(self, **text: Any) -> None:
        """Replace the model by an untrained one whose text layers have other sizes."""
        config = AutoConfig.from_pretrained(str(self.dir))
        for name, value in text.items():
            setattr(config.text_config, name, value)
        torch.manual_seed(5)
        self.model = AutoModelForImageTextToText.from_config(config, attn_implementation="sdpa").eval()
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(std=0.15)
        take_over(self.model)

    def collator(self, **options: Any) -> Collator:
        return Collator(self.tokens, self.vision, ImageCache(self.screens.__getitem__), **options)

    def samples(self) -> list[Sample]:
        """The steps of two trajectories that begin alike: rows with several spans, branches, and a sliding window."""
        hashes = list(self.screens)
        pads = [self.vision.num_tokens(self.screens[name]) for name in hashes]
        found: list[Sample] = []
        for number in range(2):
            texts = [f"Action: click(start_box='({step},{number + 7})')" for step in range(len(hashes))]
            responses = [self.tokens.response(text) for text in texts]
            steps = record_steps(self.tokens, "Click on the tab", hashes, pads, responses, Window(4))
            found += [Sample.from_step(step, trajectory=number) for step in steps]
        return found

    def own(self, sample: Sample) -> Tensor:
        """Log-probabilities by the model's own forward pass over the plain sequence, with gradient."""
        ids = torch.tensor([[*sample.prompt_ids, *sample.response_ids]])
        images = [self.screens[name] for name in sample.image_hashes]
        with as_published(self.model):
            logits = self.model(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                mm_token_type_ids=torch.from_numpy(self.tokens.mm_token_type_ids(ids.numpy())),
                pixel_values=torch.from_numpy(np.concatenate([self.vision.patchify(image) for image in images])),
                image_grid_thw=torch.tensor([self.vision.grid(image) for image in images]),
            ).logits[0]
        count = len(sample.response_ids)
        return token_logprobs(logits[-count - 1 : -1], ids[0, -count:], self.tokens.suppressed_ids)[0]
