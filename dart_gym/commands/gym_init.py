"""`dart-gym init`: the first files of a cluster, or of tasks of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dart_gym.cluster.server.server_settings import ServerSettings
from dart_gym.commands.first_files import FirstKind, kinds_help, schema_text, write_first

SCHEMA = "dart-gym.schema.json"
KINDS = {
    "cluster": FirstKind(
        "desktops for other processes and machines",
        ("dart-gym serve --config cluster.yaml", "dart-gym status"),
        ("guides/cluster",),
    ),
    "tasks": FirstKind(
        "a task of your own, in OSWorld's format",
        (
            "dart-agent eval tasks/confirm.json --policy oracle --n 2     # its oracle solves it",
            "dart-agent eval tasks/confirm.json --policy random --n 2     # by chance hardly anybody does",
        ),
        ("guides/environments", "guides/tasks"),
    ),
}


def init(
    kind: Annotated[str, typer.Argument(help=kinds_help(KINDS))] = "cluster",
    out: Annotated[Path, typer.Option(help="Directory to write into.")] = Path("."),
) -> None:
    """Write first files to change, with a JSON schema for editors; nothing is overwritten."""
    schema = ServerSettings.model_json_schema()
    schema["properties"].pop("token")  # which only code has
    schemas = {SCHEMA: schema_text(schema)} if kind == "cluster" else {}
    print("\n".join(write_first("dart_gym", KINDS, kind, out, schemas)))
