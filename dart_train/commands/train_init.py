"""`dart-train init`: the first configuration of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dart_gym.commands.first_files import FirstKind, kinds_help, schema_text, write_first
from dart_train.config.config_schema import config_schema

SCHEMA = "dart-train.schema.json"
_RUN, _CHECK = "dart-train run run.yaml", "dart-train run run.yaml --dry-run"
KINDS = {
    "quickstart": FirstKind(
        "a tiny model on a drawn task, on the CPU, in minutes",
        (_CHECK, f"{_RUN}     # afterwards runs/first/report.html shows what was learned"),
        ("tutorials/with_pip", "reference/configuration"),
    ),
    "own-tasks": FirstKind(
        "a task of your own, on real desktops",
        ("dart-agent eval tasks/confirm.json --policy oracle --n 2", _CHECK, _RUN),
        ("guides/tasks", "guides/environments"),
        also=("dart_gym", "tasks"),
    ),
    "one-gpu": FirstKind(
        "an adapter for a 3B model on one GPU of 24 GB",
        ('dart-train plan run.yaml --gpus 1 --gpu-memory 24 --gpu "RTX 4090" --model 3b', _CHECK, _RUN),
        ("guides/one_node",),
    ),
    "eight-gpus": FirstKind(
        "a 7B model on OSWorld, on 8 GPUs of 80 GB",
        ("dart-train plan run.yaml --gpus 8 --gpu-memory 80 --gpu H100 --model 7b", _CHECK, _RUN),
        ("guides/one_node",),
    ),
    "ray": FirstKind(
        "the quick start on the nodes of a Ray cluster",
        ("export DART_DATA_URL=mysql+pymysql://user:password@host/database", f"{_RUN} --ray auto"),
        ("guides/ray",),
    ),
}


def init(
    kind: Annotated[str, typer.Argument(help=kinds_help(KINDS))] = "quickstart",
    out: Annotated[Path, typer.Option(help="directory to write into")] = Path("."),
) -> None:
    """Write a first configuration, with a JSON schema for editors. Existing files are not overwritten."""
    print("\n".join(write_first("dart_train", KINDS, kind, out, {SCHEMA: schema_text(config_schema())})))
