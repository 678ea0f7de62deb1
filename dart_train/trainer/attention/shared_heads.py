"""Whether a model's heads can be shared among the ranks of a context group. Pure; no torch."""

from collections.abc import Mapping
from typing import Any


def unshared_heads(config: Mapping[str, Any], ranks: int) -> str:
    """Return why a model's heads cannot be shared among `context_parallel` ranks, or "" if they can.

    Args:
        config: of the model, as its `config.json` has it.
        ranks: of a group.
    """
    text = config.get("text_config") or config
    problem = _unshared(text, ranks) if ranks > 1 and "num_attention_heads" in text else ""
    if not problem:
        return ""
    fitting = [str(count) for count in range(2, ranks) if not _unshared(text, count)]
    advice = f"set it to {' or '.join(fitting)}" if fitting else "leave it out"
    return f"context_parallel {ranks} {problem}: {advice}"


def _unshared(text: Mapping[str, Any], ranks: int) -> str:
    """Return which heads cannot be shared; fewer heads of keys than ranks are repeated, where each has as many."""
    heads = text["num_attention_heads"]
    keys = text.get("num_key_value_heads") or heads
    if heads % ranks:
        return f"does not divide the model's {heads} heads of attention"
    if keys % ranks and ranks % keys:
        return f"and the model's {keys} heads of keys do not divide one another"
    for name in ("linear_num_key_heads", "linear_num_value_heads"):
        if "linear_attention" in (text.get("layer_types") or ()) and text.get(name, 0) % ranks:
            return f"does not divide the {text[name]} heads of the model's recurrent layers ({name})"
    return ""
