"""The model of a run by the small files of its directory: there, whole, known, and fit for the other settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from dart_agent.models.families.family_table import FAMILIES, family_in, model_config
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.tiny_model import config_from_values
from dart_gym.core.suggestions import suggest
from dart_train.config.run_config import ConfigError, RunConfig
from dart_train.core.demo_models import DEMO_MODELS, demo_model
from dart_train.placement.placement import OUR_TRAINER
from dart_train.preflight.problems import found_by
from dart_train.trainer.attention.shared_heads import unshared_heads

INDEX = "model.safetensors.index.json"


def model_problems(config: RunConfig) -> list[str]:
    """Return what is wrong with `model.path`, and with settings that the model decides about."""
    path = config.model.path
    if path in DEMO_MODELS or path == "tiny":
        return found_by(lambda: _check_built_in(config))
    directory = Path(path)
    if not (directory / "config.json").is_file():
        known = ["tiny", *DEMO_MODELS]
        return [
            f"model.path: no model {path!r} on this machine: give a directory with a config.json; built in are "
            f"{', '.join(known)}"
        ]
    found = _weights(directory)
    if not (directory / "tokenizer.json").is_file():
        found.append(f"model.path: {directory} has no tokenizer.json: add the tokenizer files that belong to the model")
    else:
        found += found_by(lambda: ModelTokens.load(directory))
    found += found_by(lambda: VisionSpec.from_dir(directory))
    if config.trainer.kind == OUR_TRAINER:
        found += found_by(lambda: family_in(directory))
        found += _trainable(config, directory)
    least, most = config.agent.min_pixels, config.agent.max_pixels
    if least is not None and most is not None and least > most:
        found.append(f"agent.min_pixels {least} is above agent.max_pixels {most}: lower it")
    return found


def _check_built_in(config: RunConfig) -> None:
    """Refuse a model that comes with the package, where it is not there or its heads cannot be shared.

    Raises:
        ConfigError: with what to do.
    """
    path, ranks = config.model.path, config.trainer.context_parallel
    if path == "tiny":
        shape = config_from_values(config.model.tiny)
        text = FAMILIES[shape.family].tiny_text(shape.shape) | {"num_attention_heads": shape.heads}
    else:
        text = model_config(demo_model(path))
    if config.trainer.kind == OUR_TRAINER and (said := unshared_heads(text, ranks)):
        raise ConfigError(f"trainer.{said}")


def _weights(directory: Path) -> list[str]:
    """Return whether the files of the weights are there."""
    index = directory / INDEX
    if index.is_file():
        try:
            named = {str(name) for name in json.loads(index.read_text())["weight_map"].values()}
        except (ValueError, KeyError, AttributeError) as error:
            return [f"model.path: {index} is damaged ({error!r}): copy the model again"]
        missing = sorted(name for name in named if not (directory / name).is_file())
        if missing:
            return [
                f"model.path: {directory} lacks {len(missing)} of {len(named)} files of weights, such as {missing[0]}"
            ]
    elif not [*directory.glob("*.safetensors"), *directory.glob("*.bin")]:
        return [f"model.path: {directory} has no weights (*.safetensors): copy the whole model"]
    return []


def _trainable(config: RunConfig, directory: Path) -> Iterator[str]:
    """Yield what the trainer or the engine would refuse about this model."""
    try:
        text: dict[str, Any] = model_config(directory).get("text_config") or model_config(directory)
        names = layer_names(directory)
    except (OSError, ValueError, SafetensorError) as error:
        yield f"model.path: {directory} cannot be read: {error}: copy the model again"
        return
    if text.get("use_sliding_window") and text.get("sliding_window"):
        yield (
            f"model.path: {directory} has sliding-window attention, which is not trained: set use_sliding_window to "
            "false in its config.json if it was trained without"
        )
    options, places = config.rollout.engine.options, text.get("max_position_embeddings")
    length = options.get("max_length") if isinstance(options, dict) else None
    if isinstance(length, int) and isinstance(places, int) and length > places:
        yield f"rollout.engine.options.max_length {length} is above the model's {places} positions: lower it"
    trainer = config.trainer
    mixture = text.get("num_experts") or text.get("num_local_experts")
    if trainer.replay_routing and not mixture:
        yield f"trainer.replay_routing is for mixtures of experts, and {directory} is none: leave it out"
    if trainer.use_peft and trainer.lora_target_modules:
        more = "; experts that tokens are routed to get no adapter" if mixture else ""
        yield from (problem + more for problem in lora_problems(trainer.lora_target_modules, names))
    if said := unshared_heads(text, trainer.context_parallel):
        yield f"trainer.{said}"
    if trainer.fsdp and (directory / "pointer_head.safetensors").is_file():
        yield f"trainer.fsdp: {directory} has a pointer head, which is not cut among ranks: train it without fsdp"


def layer_names(directory: Path) -> frozenset[str]:
    """Names of the layers with weights, as files and as models in memory have them; empty without safetensors files.

    Experts that tokens are routed to are no layers in memory, but parts of one tensor: they get no adapter.
    """
    index = directory / INDEX
    keys: set[str] = set()
    if index.is_file():
        keys = set(json.loads(index.read_text()).get("weight_map", {}))
    else:
        for file in sorted(directory.glob("*.safetensors")):
            with safe_open(file, framework="np") as weights:
                keys |= set(weights.keys())
    stored = {key.rpartition(".")[0] for key in keys if key.endswith(".weight") and ".mlp.experts." not in key}
    memory = {re.sub(r"^model\.(?=layers|embed|norm)", "model.language_model.", name) for name in stored}
    memory |= {re.sub(r"^visual\.", "model.visual.", name) for name in stored}
    memory |= {re.sub(r"^language_model\.model\.", "model.language_model.", name) for name in stored}
    return frozenset(stored | memory)


def lora_problems(targets: list[str], names: frozenset[str]) -> list[str]:
    """Return peft's problems with `lora_target_modules`: one entry is a regular expression, several are endings."""
    if not names or targets == ["all-linear"]:
        return []
    ends = sorted({name.rpartition(".")[2] for name in names})
    if len(targets) > 1:
        return [
            f"trainer.lora_target_modules: the model has no layer {target!r}; {suggest(target, ends, count=2)}"
            for target in targets
            if not any(name == target or name.endswith(f".{target}") for name in names)
        ]
    try:
        pattern = re.compile(targets[0])
    except re.error as error:
        return [f"trainer.lora_target_modules: {targets[0]!r} is no regular expression ({error})"]
    if any(pattern.fullmatch(name) for name in names):
        return []
    hint = suggest(targets[0], ends, count=2)
    return [
        f"trainer.lora_target_modules: {targets[0]!r}, as one regular expression for whole names, fits no layer of the "
        f"model; {hint} For the end of a name write '.*\\.q_proj', or give several names"
    ]
