"""Makes the shipped model `dart_train/assets/tiny_base` anew, in two stages.

    .venv/bin/python scripts/make_tiny_base.py [--runs-dir runs]

`configs/tiny_base.yaml`: a fresh tiny model, clean demonstrations of six MiniWoB++ tasks that the quick start does
not train. `configs/tiny_base_2.yaml`: imperfect demonstrations of four of its tasks, three in four with a wrong
instruction.
Everything is collected on real desktops; some fifteen minutes on two cores.
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


def stage(config_name: str, runs_dir: Path, *overrides: str) -> Path:
    """Run one stage and return the directory of its weights."""
    config = load_config(ROOT / "configs" / config_name, list(overrides))
    run = pipeline.execute(config, runs_dir, only=("prepare", "demonstrate", "warmup"))
    return run.checkpoint(pipeline.WARM_VERSION)


def main(runs_dir: Annotated[Path, typer.Option(help="where the runs are kept")] = ROOT / "runs") -> None:
    """Collect, train, collect, train, copy."""
    first = stage("tiny_base.yaml", runs_dir)
    second = stage("tiny_base_2.yaml", runs_dir, f"model.path={first.resolve()}")
    shutil.rmtree(TARGET, ignore_errors=True)
    shutil.copytree(second, TARGET)
    typer.echo(f"wrote {TARGET}")


if __name__ == "__main__":
    typer.run(main)
