"""Commands of `dart-agent presets`: which there are, and all that one of them says."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console
from rich.table import Column, Table

from dart_agent.presets import get_preset, presets
from dart_agent.presets.preset_check import check_preset
from dart_gym.commands.json_output import JsonOption, write_json

app = typer.Typer(help="Models' published behaviour: prompt, history, coordinates, sampling.", no_args_is_help=True)
console = Console()


@app.command("list")
def list_command(json_file: JsonOption = None) -> None:
    """One row for every preset: whether its facts are verified, and its prompt was compared with the publisher's."""
    names = ("preset", "policy", "family", "verified", "compared")
    table = Table(*(Column(name, no_wrap=name != "family") for name in names))
    write_json(json_file, [{"verified": one.verified, **asdict(one)} for one in presets().values()])
    for preset in presets().values():
        families, compared = ", ".join(preset.families) or "-", "yes" if preset.compared else "no"
        verified = "all" if preset.verified else "in part"
        table.add_row(preset.name, preset.policy, families, verified, compared)
    console.print(table)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Of the preset.")],
    model: Annotated[Path | None, typer.Option(help="A model directory that is compared with it.")] = None,
) -> None:
    """Everything that a preset says, as YAML; its prompts to the letter."""
    preset = get_preset(name)
    said = {"hash": preset.digest, "verified": preset.verified, **asdict(preset)}
    console.print(
        yaml.safe_dump(json.loads(json.dumps(said)), sort_keys=False, width=120),
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    if model is not None:
        for line in check_preset(preset, model) or ["the model directory says the same"]:
            console.print(line, markup=False, highlight=False)
