"""The families that are known, by `model_type`; any other family is refused by name before anything is loaded."""

import json
from pathlib import Path
from typing import Any

from dart_agent.models.families.family import Family
from dart_agent.models.families.qwen2_5_vl import QWEN2_5_VL
from dart_agent.models.families.qwen2_vl import QWEN2_VL
from dart_agent.models.families.qwen3_5 import QWEN3_5
from dart_agent.models.families.qwen3_5_moe import QWEN3_5_MOE
from dart_agent.models.families.qwen3_vl import QWEN3_VL
from dart_agent.models.families.qwen3_vl_moe import QWEN3_VL_MOE
from dart_gym.core.errors import ConfigurationError

FAMILIES: dict[str, Family] = {
    family.model_type: family for family in (QWEN2_VL, QWEN2_5_VL, QWEN3_VL, QWEN3_5, QWEN3_VL_MOE, QWEN3_5_MOE)
}


def family_of(config: Any) -> Family:
    """Return the family of a loaded model's configuration.

    Raises:
        ConfigurationError: if the family is unknown.
    """
    return _family(config.model_type, "the model")


def family_in(model_dir: str | Path) -> Family:
    """Return the family of a model directory, by its `config.json`.

    Raises:
        ConfigurationError: if the family is unknown.
    """
    return _family(model_config(model_dir).get("model_type"), str(model_dir))


def model_config(model_dir: str | Path) -> dict[str, Any]:
    """Read the `config.json` of a model directory.

    Raises:
        ConfigurationError: if it cannot be read, or holds no mapping.
    """
    path = Path(model_dir) / "config.json"
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise ConfigurationError(f"{path} is not a model's configuration: it holds no mapping")
    return config


def _family(model_type: Any, name: str) -> Family:
    if model_type not in FAMILIES:
        raise ConfigurationError(
            f"{name} is a {model_type} model, and what its family needs is not known: it would be computed wrongly. "
            f"Known are {', '.join(FAMILIES)}; for rollouts alone serve it through a vLLM server"
        )
    return FAMILIES[model_type]
