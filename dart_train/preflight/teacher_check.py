"""The teacher of a run: it fits the student, the trainer and the tasks, as far as that is known before the start."""

from __future__ import annotations

from collections.abc import Iterator

from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_gym.core.errors import DartGymError
from dart_gym.tasks.catalog.registry import get_task
from dart_train.config.run_config import RunConfig
from dart_train.config.task_names import expand_tasks
from dart_train.core.demo_models import DEMO_MODELS, model_place
from dart_train.placement.placement import OUR_TRAINER
from dart_train.preflight.problems import found_by
from dart_train.rollout.teachers.model_fit import misfit


def teacher_problems(config: RunConfig) -> list[str]:
    """Return what is wrong with the section `teacher`."""
    settings = config.teacher
    if settings.kind is None:
        return (
            ["teacher.rehearsed_rows: nobody teaches: set teacher.kind, or leave it out"]
            if settings.rehearsed_rows
            else []
        )
    found: list[str] = []
    if config.trainer.kind != OUR_TRAINER:
        found.append(
            f"teacher.kind: the trainer {config.trainer.kind} learns from no teacher: set trainer.kind to {OUR_TRAINER}"
        )
    if settings.kind == "distillation":
        found += _distillation(config)
    if settings.kind in ("distillation", "dagger") and settings.options.get("model") is not None:
        found += _model(config, settings.options["model"])
    elif settings.kind == "dagger":
        found += _scripted(config)
    return found


def _distillation(config: RunConfig) -> Iterator[str]:
    options = config.teacher.options
    if config.teacher.rehearsed_rows:
        yield (
            "teacher.rehearsed_rows: a distillation gives no answers, it says how likely the policy's own are: leave "
            "it out, or take teacher.kind dagger"
        )
    if str(options.get("url") or "").startswith("http") and config.rollout.sampling.temperature != 1.0:
        yield (
            "teacher.options.url: vLLM says how likely given tokens are at temperature 1 only, and "
            f"rollout.sampling.temperature is {config.rollout.sampling.temperature:g}: set it to 1, or serve the "
            "teacher by our engine (ws://)"
        )


def _model(config: RunConfig, model: str) -> Iterator[str]:
    """Yield why a model cannot be the teacher."""
    if missing := found_by(lambda: model_place(model)):
        yield from (f"teacher.options.model: {text}" for text in missing)
        return
    teacher = model_place(model)
    if not (teacher / "config.json").is_file():
        yield (
            f"teacher.options.model: no model {model!r} on this machine: give a directory with a config.json; built in "
            f"are {', '.join(DEMO_MODELS)}"
        )
        return
    path = config.model.path
    if found_by(lambda: model_place(path)):
        return  # said of model.path
    student = model_place(path)
    if not (student / "tokenizer.json").is_file():
        return  # built at the start, where the teacher is looked at again
    try:
        problem = misfit(teacher, ModelTokens.load(student), VisionSpec.from_dir(student))
    except DartGymError as error:
        problem = f"teacher.options.model: {error}"
    if problem:
        yield problem


def _scripted(config: RunConfig) -> Iterator[str]:
    """Tasks whose oracle follows a script: it knows its own way, and not the way out of a student's state."""
    if config.cluster.url is not None or found_by(lambda: expand_tasks(config)):
        return  # said of the tasks, or known elsewhere
    names = [name for name in expand_tasks(config).train_tasks if _follows_script(name)]
    if names:
        yield (
            f"teacher.kind dagger: the oracle of {', '.join(names[:3])}{' and others' if names[3:] else ''} follows a "
            "recorded script, whatever the state: take tasks whose oracle looks at the state, or let a better "
            "model answer (teacher.options.model)"
        )


def _follows_script(name: str) -> bool:
    try:
        task = get_task(name)
    except DartGymError:
        return False  # said of the tasks
    return bool(task.solution or (task.raw.get("dart") or {}).get("oracle"))
