"""`dart-agent init`: the first settings of a policy, a class of one's own, and a model to try things with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dart_agent.policies.policy_factory import PolicyOptions
from dart_gym.commands.first_files import FirstKind, kinds_help, schema_text, write_first
from dart_gym.core.errors import ConfigurationError
from dart_gym.core.project_pages import integration
from dart_gym.core.suggestions import suggest

SCHEMA = "dart-agent.schema.json"
_EVAL = "dart-agent eval fake/click-button --config agent.yaml --n 20"
KINDS = {
    "server": FirstKind(
        "a model behind OpenAI's chat completions",
        ("curl http://127.0.0.1:8000/v1/models     # what the server calls its models", _EVAL),
        ("tutorials/own_model", "reference/formats"),
    ),
    "vllm": FirstKind(
        "a model in an unmodified vLLM server",
        ("""vllm serve Qwen/Qwen2.5-VL-3B-Instruct --limit-mm-per-prompt '{"image": 1}'""", _EVAL),
        ("tutorials/own_model", "guides/engines"),
    ),
    "transformers": FirstKind(
        "a model in this process",
        ("dart-agent init tiny     # an untrained model, in the directory model", _EVAL),
        ("tutorials/own_model", "guides/policies"),
    ),
    "hosted": FirstKind(
        "a vendor's model with its computer tool",
        (integration("hosted_models"), "pip install 'dart-gui[apis]'", "export ANTHROPIC_API_KEY=...", _EVAL),
        ("tutorials/own_model",),
    ),
    "function": FirstKind("a Python function of your own", (_EVAL,), ("tutorials/own_model", "tutorials/own_policy")),
}


TINY = "tiny"
"""The kind that is a model instead of files to change."""


def init(
    kind: Annotated[
        str, typer.Argument(help=f"{kinds_help(KINDS).removesuffix('.')}; {TINY}: an untrained vision-language model.")
    ] = "function",
    out: Annotated[
        Path | None, typer.Option(help=f"Directory to write into; by default this one, and model for {TINY}.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help=f"Of the initial weights of {TINY}; 0 by default.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help=f"field=value of TinyModelConfig, for {TINY}; may be repeated.")
    ] = None,
) -> None:
    """Write first settings of a policy to change, with a JSON schema for editors, or a tiny model to try them with.

    Nothing is overwritten.
    """
    if kind not in (*KINDS, TINY):
        raise ConfigurationError(f"there is no kind {kind!r} of first files; {suggest(kind, [*KINDS, TINY])}")
    if kind == TINY:
        _build_tiny(out or Path("model"), seed or 0, overrides or [])
        return
    if seed is not None or overrides:
        raise ConfigurationError(f"--seed and --set are about the model of the kind {TINY}, and this is {kind}")
    schema = schema_text(PolicyOptions.model_json_schema())
    print("\n".join(write_first("dart_agent", KINDS, kind, out or Path("."), {SCHEMA: schema})))


def _build_tiny(directory: Path, seed: int, overrides: list[str]) -> None:
    """Build the untrained tiny vision-language model.

    Raises:
        ConfigurationError: if there is something in the directory already, or a field or value is wrong.
    """
    from dart_agent.models.tiny_model import build_tiny_model, config_from_text

    if directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
        raise ConfigurationError(f"{directory} is there already, and nothing was written: choose another --out")
    build_tiny_model(directory, seed=seed, config=config_from_text(overrides))
    size = sum(path.stat().st_size for path in directory.iterdir())
    print(f"{directory}: {size / 1e6:.1f} MB")
