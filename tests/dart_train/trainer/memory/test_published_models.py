"""The shapes that plans have of published models are those of the models that transformers builds."""

from __future__ import annotations

import pytest
import torch

from dart_agent.models.families.family_table import FAMILIES
from dart_train.trainer.memory.model_size import ModelSize
from dart_train.trainer.memory.published_models import PUBLISHED, published_shapes


@pytest.mark.train
@pytest.mark.parametrize("name", PUBLISHED)
def test_shapes_are_those_of_the_model(name):
    import transformers

    family = FAMILIES[PUBLISHED[name]["model_type"]]
    values = {key: value for key, value in PUBLISHED[name].items() if key != "model_type"}
    with torch.device("meta"):
        model = getattr(transformers, family.model_class)(getattr(transformers, f"{family.classes}Config")(**values))
    found = {name: tuple(item.shape) for name, item in model.named_parameters()}
    assert found == published_shapes(PUBLISHED[name])


def test_sizes_are_those_that_the_names_of_mixtures_tell():
    """30B-A3B: 30 billion weights, of which 3 compute a token."""
    vl, newer = ModelSize.published("qwen3-vl-30b-a3b"), ModelSize.published("qwen3.5-35b-a3b")
    assert vl.language == pytest.approx(30.5e9, rel=0.01) and newer.language == pytest.approx(34.7e9, rel=0.01)
    for size in (vl, newer):
        assert 2.5e9 < size.layers * size.active + size.root < 3.5e9
    dense = ModelSize.published("7b")
    assert dense.active == dense.layer and dense.of_rank(8) == dense.language // 8


def test_a_rank_holds_whole_experts():
    """More ranks than experts leave some without any, and those that have one with more than a share."""
    size = ModelSize.published("qwen3-vl-30b-a3b")
    in_experts = size.layers * size.experts * size.expert
    assert size.of_rank(1) == size.language
    assert size.of_rank(8) == pytest.approx(size.language / 8, rel=1e-6)
    assert size.of_rank(256) == pytest.approx((size.language - in_experts) / 256 + in_experts / 128, rel=1e-6)
