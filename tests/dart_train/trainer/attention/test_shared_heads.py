"""Which numbers of ranks can share a model's heads, and what is said of those that cannot."""

from __future__ import annotations

from dart_train.trainer.attention.shared_heads import unshared_heads
from dart_train.trainer.memory.published_models import PUBLISHED


def test_published_models_are_shared_by_these_numbers_of_ranks():
    """Qwen2.5-VL-7B has 28 heads and 4 of keys; where keys have fewer heads than ranks they are repeated."""
    found = {
        name: [ranks for ranks in range(1, 17) if not unshared_heads(config, ranks)]
        for name, config in PUBLISHED.items()
    }
    assert found["7b"] == [1, 2, 4]
    assert found["3b"] == [1, 2, 4, 8, 16]
    assert found["qwen3-vl-30b-a3b"] == [1, 2, 4, 8, 16]
    assert found["qwen3.5-35b-a3b"] == [1, 2, 4, 8, 16]


def test_what_does_not_fit_is_said_with_what_does():
    config = {"num_attention_heads": 28, "num_key_value_heads": 4}
    assert unshared_heads(config, 8) == "context_parallel 8 does not divide the model's 28 heads of attention: " + (
        "set it to 2 or 4"
    )
    assert unshared_heads(config, 7) == (
        "context_parallel 7 and the model's 4 heads of keys do not divide one another: set it to 2 or 4"
    )
    recurrent = {
        "num_attention_heads": 4, "num_key_value_heads": 4, "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    }  # fmt: skip
    assert unshared_heads({"text_config": recurrent}, 4) == (
        "context_parallel 4 does not divide the 2 heads of the model's recurrent layers (linear_num_key_heads): "
        "set it to 2"
    )
    assert unshared_heads({"num_attention_heads": 9}, 2).endswith("attention: leave it out")
