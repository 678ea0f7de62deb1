"""`dart-agent init`: the first settings of a policy, and a class of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dart_agent.policies.policy_factory import PolicyOptions
from dart_gym.commands.first_files import FirstKind, kinds_help, schema_text, write_first
from dart_gym.core.project_pages import integration

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
        "a model in this process", ("dart-agent tiny model", _EVAL), ("tutorials/own_model", "guides/policies")
    ),
    "hosted": FirstKind(
        "a vendor's model with its computer tool",
        (integration("hosted_models"), "pip install 'dart-gui[apis]'", "export ANTHROPIC_API_KEY=...", _EVAL),
        ("tutorials/own_model",),
    ),
    "function": FirstKind("a Python function of your own", (_EVAL,), ("tutorials/own_model", "tutorials/own_policy")),
}


def init(
    kind: Annotated[str, typer.Argument(help=kinds_help(KINDS))] = "function",
    out: Annotated[Path, typer.Option(help="Directory to write into.")] = Path("."),
) -> None:
    """Write first settings of a policy to change, with a JSON schema for editors; nothing is overwritten."""
    schema = schema_text(PolicyOptions.model_json_schema())
    print("\n".join(write_first("dart_agent", KINDS, kind, out, {SCHEMA: schema})))
