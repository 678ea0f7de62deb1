"""Makes the shipped models anew.

    .venv/bin/python scripts/make_tiny_base.py base|copier|actor|reader [--runs-dir runs]

base, which the quick start begins from, in three stages. `configs/tiny_base.yaml`: a fresh tiny model, clean
demonstrations of six MiniWoB++ tasks that the quick start does not train. `configs/tiny_base_2.yaml`: pages of the
quick start's tasks, with instructions of our own that only name an element ('Find "Cancel".'): the model learns to
find what is named. `configs/tiny_base_3.yaml`: a form beside them, whose instruction names an option, a field and a
number in any order ('Find text 3rd of "24" the item 1st'). The model never sees the tasks' own instructions. All on
real desktops; twenty minutes of two cores.

copier, which `configs/multiturn.yaml` begins from. `configs/tiny_copier.yaml`: a fresh model that is taught to type
what its instruction names (`copying_lessons.py`) and to click on a card on drawn screens (`seeing_lessons.py`), and
nothing else; half an hour of two cores.

actor, which `configs/drawn.yaml` and `configs/multiturn_short.yaml` begin from. The shipped copier, taught to write all
other actions as well (`acting_lessons.py`); a quarter of an hour of two cores.

reader, which is not shipped but stays in the runs' directory. `configs/tiny_reader.yaml`: a fresh model that is taught
to read words and to point at them (`reading_lessons.py`) before demonstrations of drawn programs.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import re
import shutil
from pathlib import Path
from typing import Annotated, Literal

import typer
from acting_lessons import teach_acting_by_words
from copying_lessons import teach_copying
from reading_lessons import acting_samples, pointing_samples, teach_acting, teach_reading
from seeing_lessons import teach_seeing

from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_directory import DIGESTS, FINGERPRINT
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.tiny_model import INSTRUCTION_WORDS
from dart_agent.prompting.conversation import Conversation
from dart_train.config.run_config import RunConfig, load_config
from dart_train.core.demo_models import demo_models
from dart_train.launch import pipeline
from dart_train.processes.prepare import place_model
from dart_train.processes.process_context import open_data
from dart_train.trainer.batches.demonstrations import Demonstration, encode
from dart_train.trainer.supervised import train_supervised

ROOT = Path(__file__).resolve().parent.parent
ASSETS = demo_models()
READING_STEPS, POINTING_SCREENS = 600, 350
COPYING_STEPS = 3000
SEEING_STEPS = (1200, 1000)
ACTING_STEPS = 2400
OF_A_RUN = (DIGESTS, FINGERPRINT)
"""What a run writes beside a version's weights, and a model does not need."""

NAMES = r'"[^"]+"|Tab #\d|\d(?:st|nd|rd)|\(-?\d,-?\d\)'
"""What the instructions of the quick start's tasks name: a label or number, a tab, a position, a point of the grid."""
WORDINGS = 3
"""Of a demonstration with several names: with one wording of each a number is not looked for, but remembered."""


def named(instruction: str, rng: random.Random) -> list[str]:
    """Instructions of our own that name the same elements, and not what is to be done with them.

    Those of a form stand in any order among words that say nothing: the number can be told by its marks, the option
    and the field from one another not at all. That is left to the tasks' own instructions.
    """
    names = re.findall(NAMES, instruction)
    if not names:
        raise ValueError(f"nothing is named in {instruction!r}")
    return [f"Find {names[0]}."] if len(names) == 1 else [_in_any_order([*names], rng) for _ in range(WORDINGS)]


def _in_any_order(names: list[str], rng: random.Random) -> str:
    rng.shuffle(names)
    return " ".join(
        ["Find", *(word for name in names for word in (*rng.choices(INSTRUCTION_WORDS, k=rng.randrange(5)), name))]
    )


def first_stage(runs_dir: Path) -> Path:
    """Clean demonstrations of other tasks; returns the directory of the weights."""
    config = load_config(ROOT / "configs" / "tiny_base.yaml")
    run = pipeline.execute(config, runs_dir, only=("prepare", "demonstrate", "warmup"))
    return run.checkpoint(pipeline.WARM_VERSION)


def finding_stage(number: int, before: Path, runs_dir: Path) -> Path:
    """Find what is named on the pages of the quick start's tasks; returns the directory of the weights."""
    config = load_config(ROOT / "configs" / f"tiny_base_{number}.yaml", [f"model.path={before.resolve()}"])
    run = pipeline.execute(config, runs_dir, only=("prepare", "demonstrate"))
    target = run.root / "weights"
    tokens = ModelTokens.load(before)
    conversation = Conversation(tokens, VisionSpec.from_dir(before), config.agent)
    with open_data(config, run) as data:
        recorded = [Demonstration.from_trajectory(item) for item in data.trajectories(source="oracle")]
        rng = random.Random(config.seed)
        rewritten = [
            dataclasses.replace(item, instruction=words) for item in recorded for words in named(item.instruction, rng)
        ]
        samples = encode(rewritten, conversation, tokens, data.load_image)
        train_supervised(before, samples, data.load_image, target, config.warmup, on_progress=_say)
    return target


def copier(runs_dir: Path) -> Path:
    """Copying, in text alone, then seeing; returns the directory of the weights."""
    config = load_config(ROOT / "configs" / "tiny_copier.yaml")
    fresh, taught, weights = (runs_dir / f"{config.name}-lessons" / name for name in ("fresh", "copier", "weights"))
    if not fresh.exists():
        place_model("tiny", config.model.tiny, fresh, seed=config.seed, pixels={"max_pixels": config.agent.max_pixels})
    if not taught.exists():
        teach_copying(fresh, taught, COPYING_STEPS, words_of(config), say=typer.echo, seed=config.seed)
    if not weights.exists():
        teach_seeing(taught, weights, SEEING_STEPS, words_of(config), say=typer.echo, seed=config.seed)
    return weights


def actor(runs_dir: Path) -> Path:
    """All actions, by the shipped copier; returns the directory of the weights."""
    config = load_config(ROOT / "configs" / "tiny_copier.yaml")
    weights = runs_dir / "tiny-actor-lessons" / "weights"
    if not weights.exists():
        teach_acting_by_words(
            ASSETS / "tiny_copier", weights, ACTING_STEPS, words_of(config), say=typer.echo, seed=config.seed
        )
    return weights


def words_of(config: RunConfig) -> list[str]:
    """The words that a model of a configuration has as tokens, which its lessons are made of."""
    return [*INSTRUCTION_WORDS, *config.model.tiny["extra_words"]]


def reader(runs_dir: Path) -> Path:
    """Reading, then pointing and clean demonstrations of drawn programs; returns the directory of the weights."""
    config = load_config(ROOT / "configs" / "tiny_reader.yaml")
    lessons = runs_dir / f"{config.name}-lessons"
    fresh, taught, weights = (lessons / name for name in ("fresh", "reader", "weights"))
    if not fresh.exists():
        place_model("tiny", config.model.tiny, fresh, seed=config.seed)
    if not taught.exists():
        teach_reading(fresh, taught, READING_STEPS, say=typer.echo, seed=config.seed)
    if not weights.exists():
        shown = config.demonstrations
        points, screens = pointing_samples(taught, config.agent, POINTING_SCREENS, grid=shown.grid, seed=config.seed)
        tasks = shown.tasks or config.train_tasks
        acts, more = asyncio.run(acting_samples(taught, config.agent, tasks, shown.per_task, grid=shown.grid))
        teach_acting(taught, [*points, *acts], screens | more, weights, config.warmup, say=typer.echo)
    return weights


def _say(progress: object) -> None:
    if getattr(progress, "steps", 0) % 100 == 0:
        typer.echo(progress)


def main(
    which: Annotated[Literal["base", "copier", "actor", "reader"], typer.Argument(help="the model")],
    runs_dir: Annotated[Path, typer.Option(help="where the runs are kept")] = ROOT / "runs",
) -> None:
    """Collect, train, collect, train, copy."""
    if which == "reader":
        typer.echo(f"wrote {reader(runs_dir)}")
        return
    match which:
        case "copier":
            weights = copier(runs_dir)
        case "actor":
            weights = actor(runs_dir)
        case _:
            weights = finding_stage(3, finding_stage(2, first_stage(runs_dir), runs_dir), runs_dir)
    target = ASSETS / f"tiny_{which}"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(weights, target, ignore=shutil.ignore_patterns(*OF_A_RUN))
    for path in target.iterdir():
        path.chmod(0o644)
    typer.echo(f"wrote {target}")


if __name__ == "__main__":
    typer.run(main)
