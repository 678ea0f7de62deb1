"""A preset beside the directory of a model: another family is refused, other differences are named."""

import json
from pathlib import Path
from typing import Any

from dart_agent.models.families.family_table import model_config
from dart_agent.models.image_patches import VisionSpec
from dart_agent.presets.preset import Preset
from dart_gym.core.errors import ConfigurationError


def check_preset(preset: Preset, model_dir: Path) -> list[str]:
    """Return what a model directory says otherwise than a preset, one line each.

    Args:
        preset: what is asked for.
        model_dir: Hugging Face directory of the model.

    Raises:
        ConfigurationError: the model is of a family that the preset is not for, or its files cannot be read.
    """
    kind = model_config(model_dir).get("model_type")
    if kind not in preset.families:
        raise ConfigurationError(
            f"the preset {preset.name} is for {' and '.join(preset.families) or 'a hosted model'}, {model_dir} holds a "
            f"{kind} model: its prompt and coordinates would be wrong. `dart-agent presets` says which preset is "
            "for which family"
        )
    vision, sampling = VisionSpec.from_dir(model_dir), _generation(model_dir)
    least, most = preset.pixels or (vision.min_pixels, vision.max_pixels)
    pairs = (
        ("fewest pixels of an image", max(least, vision.min_pixels), least),
        ("most pixels of an image", min(most, vision.max_pixels), most),
        ("temperature", sampling.get("temperature", preset.temperature), preset.temperature),
        ("top_p", sampling.get("top_p", preset.top_p), preset.top_p),
    )
    said = [
        f"{what}: {here!r} in the model directory, {there!r} published" for what, here, there in pairs if here != there
    ]
    tokens = _special_tokens(model_dir)
    missing = [token for token in preset.stop if tokens and token not in tokens]
    return said + [f"the model's tokenizer has no token {token}, which ends a response" for token in missing]


def narrowed(vision: VisionSpec, least: int | None, most: int | None) -> tuple[int, int]:
    """Bounds of pixels that a preset and a model's own processor both keep: what is in them no processor resizes again.

    Raises:
        ConfigurationError: there is no such number.
    """
    low, high = max(vision.min_pixels, least or 0), min(vision.max_pixels, most or vision.max_pixels)
    if low > high:
        raise ConfigurationError(
            f"no image has from {low} to {high} pixels: min_pixels and max_pixels of the preset and of the model "
            "directory do not meet; set max_pixels"
        )
    return low, high


def _generation(model_dir: Path) -> dict[str, Any]:
    path = model_dir / "generation_config.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def _special_tokens(model_dir: Path) -> set[str]:
    path = model_dir / "tokenizer.json"
    added = json.loads(path.read_text()).get("added_tokens", []) if path.is_file() else []
    return {token["content"] for token in added}
