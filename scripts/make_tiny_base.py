"""Makes the shipped model `dart_train/assets/tiny_base` anew, as `configs/tiny_base.yaml` says.

    .venv/bin/python scripts/make_tiny_base.py [--runs-dir runs]

Demonstrations of eleven MiniWoB++ tasks are collected on real desktops and a fresh tiny model is trained on them. Takes
some twenty minutes on two cores.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from dart_train import pipeline
from dart_train.config import load_config

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "dart_train" / "assets" / "tiny_base"


def main(runs_dir: Annotated[Path, typer.Option(help="where the run is kept")] = ROOT / "runs") -> None:
    """Collect, train, copy."""
    config = load_config(ROOT / "configs" / "tiny_base.yaml")
    run = pipeline.execute(config, runs_dir, only=("prepare", "demonstrate", "warmup"))
    shutil.rmtree(TARGET, ignore_errors=True)
    shutil.copytree(run.checkpoint(pipeline.WARM_VERSION), TARGET)
    typer.echo(f"wrote {TARGET}")


if __name__ == "__main__":
    typer.run(main)
