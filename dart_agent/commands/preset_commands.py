"""`dart-agent presets`: a list of them, or all settings of one."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.table import Column, Table

from dart_agent.presets import get_preset, presets
from dart_agent.presets.preset_check import check_preset
from dart_gym.commands.json_output import JsonOption, write_json
from dart_gym.core.errors import ConfigurationError

console = Console()


def presets_command(
    name: Annotated[
        str | None, typer.Argument(help="Of a preset, to print all that it says; without it: a list.")
    ] = None,
    model: Annotated[Path | None, typer.Option(help="With NAME: a model directory that is compared with it.")] = None,
    json_file: JsonOption = None,
) -> None:
    """List the models' published behaviour (prompt, history, coordinates, sampling), or print one preset as YAML."""
    if name is not None:
        _show(name, model, json_file)
    elif model is not None:
        raise ConfigurationError("--model is compared with one preset: name it")
    else:
        _list(json_file)


def _list(json_file: Path | None) -> None:
    """Print one row for every preset: whether its facts are verified, and its prompt compared with the publisher's."""
    names = ("preset", "policy", "family", "verified", "compared")
    table = Table(*(Column(name, no_wrap=name != "family") for name in names))
    write_json(json_file, [{"verified": one.verified, **asdict(one)} for one in presets().values()])
    for preset in presets().values():
        families, compared = ", ".join(preset.families) or "-", "yes" if preset.compared else "no"
        verified = "all" if preset.verified else "in part"
        table.add_row(preset.name, preset.policy, families, verified, compared)
    console.print(table)


def _show(name: str, model: Path | None, json_file: Path | None) -> None:
    """Print everything that a preset says, as YAML; its prompts to the letter."""
    preset = get_preset(name)
    said: dict[str, Any] = json.loads(
        json.dumps({"hash": preset.digest, "verified": preset.verified, **asdict(preset)})
    )
    write_json(json_file, said)
    console.print(yaml.safe_dump(said, sort_keys=False, width=120), markup=False, highlight=False, soft_wrap=True)
    if model is not None:
        for line in check_preset(preset, model) or ["the model directory says the same"]:
            console.print(line, markup=False, highlight=False)
