"""Reads a run directory and its data base into `ReportData`. What was not measured is None, never 0."""

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dart_gym.utils.rates import wilson_interval
from dart_train.config.resume_changes import recorded
from dart_train.config.run_config import RunConfig
from dart_train.core.data_states import POLICY_SOURCE
from dart_train.core.judge_counts import judge_counts, judge_faults, judge_said
from dart_train.core.metrics_log import engine_use, last_of_lives, read_metrics
from dart_train.core.training_alarms import alarm_named, count_steps
from dart_train.data.groups import trajectory_rows
from dart_train.data.insight import statistics
from dart_train.data.manager.run_insight import Insight
from dart_train.report.report_data import Curve, Rate, ReportData, TaskFigures, TimeSeries, Turns, mean_rate, smooth
from dart_train.rollout.settings.reward_config import judge_warnings
from dart_train.run.run_directory import RunDirectory, RunState, read_json

CURVE_WINDOW = 160
"""Rollouts of a task over which its learning curve is averaged; a quarter of them where a task has few."""

SERIES_POINTS = 120
STRETCHES = 12
"""Parts of the training by which the report says how rollouts were spent."""
ENTROPY_ROLLOUTS = 200
"""Rollouts at both ends of the training whose entropies are compared."""
NOBODY_ASKED = statistics.AskedCounts()
MOST_NAMED = 6
"""Tasks that a note lists."""
PHASE_TITLES = {
    "prepare": "model",
    "demonstrate": "demonstrations by the oracles",
    "warmup": "supervised warm-up",
    "before": "test before",
    "rl": "reinforcement learning",
    "after": "test after",
    "constant": "constant-click baseline",
    "supervised": "control: supervised training instead of RL",
    "report": "report",
    "base": "test of the shipped weights",
    "greedy_before": "greedy test before",
    "greedy_after": "greedy test after",
}

NOTE_SUCCESS = (
    "Success is measured at temperature {temperature:g}, the policy that is trained, on {episodes} seeds per task that "
    "training never uses. Intervals are 95 %: Wilson per task, bootstrap over episodes for the mean."
)
SHIPPED = "The model starts from weights of the package dart-gym-demo-models: supervised training on "
NOTES_SHIPPED = {
    "tiny-base": SHIPPED + "clean demonstrations of other MiniWoB++ tasks, then on finding what is named ('Find "
    "\"Cancel\".') on pages of some of these. The tasks' own instructions it has never seen; the demonstrations "
    "teach some of them, and tasks without any lose by it a part of what the shipped weights bring along. The column "
    "'shipped weights' says what they score as they are.",
    "tiny-copier": SHIPPED + "lessons in typing what an instruction names, and in clicking on a card on drawn screens.",
    "tiny-actor": SHIPPED + "lessons in doing what an instruction names, by every kind of action and without screens, "
    "and in clicking on a card on drawn ones. It has seen no program.",
    "tiny-multiturn-start": SHIPPED + "the lessons of tiny-actor and on demonstrations of ten tasks on pages, windows "
    "and mock sites.",
    "tiny-multiturn": SHIPPED + "the lessons of tiny-actor and on demonstrations of ten tasks on pages, windows and "
    "mock sites, then reinforcement learning on these. What it can do of them at the start of this run it learned "
    "there.",
}
NOTES_ON_CONTROLS = {
    "base": "Shipped weights: what they do on these tasks before any demonstration is seen.",
    "greedy_before": "Greedy: the most probable token is taken instead of a sampled one.",
    "constant": "Best constant click: of the places where the oracle clicks most, the one that succeeds most often "
    "when it is clicked at every step, whatever the screen shows.",
    "supervised": "Supervised only: from the same warm start, supervised training on the same demonstrations went on "
    "for as long as the reinforcement learning took, or until the demonstrations were known by heart (a loss below "
    "0.001 nats per token), first beside the tests and then alone.",
    "shuffled": "Shuffled rewards: the same run, with the rewards of each batch dealt to its trajectories by chance.",
}


def gather(config: RunConfig, run: RunDirectory, data: Insight) -> ReportData:
    """Everything that the report of a run says."""
    state = RunState(run.root / "state.json")
    evaluations = {
        path.parent.name: read_json(path, "remove it, and the report leaves this evaluation out")
        for path in sorted((run.root / "eval").glob("*/scores.json"))
    }
    tasks = _tasks(config, evaluations)
    span = _rl_span(state)
    throughput = data.read(statistics.throughput, *span, workers=config.rollout.workers) if span else None
    rollout = list(read_metrics(run.metrics("rollout")))
    histogram, census = data.read(statistics.staleness_histogram), data.census()
    forks = data.read(statistics.forks)
    shown, broken = data.read(statistics.shown_counts), data.read(statistics.untrainable_counts)
    taught, asked = data.read(statistics.taught), NOBODY_ASKED
    if config.teacher.kind is not None:
        asked = data.read(statistics.asked, always=config.teacher.when == "always")
    figures: dict[str, float | int | str | None] = {
        **_success(config, evaluations),
        "wall_s": sum(state.seconds(name) for name in state.values["phases"]),
        "rl_wall_s": state.seconds("rl"),
        "rollouts": throughput.trajectories if throughput else None,
        "actions": throughput.actions if throughput else None,
        "env_utilisation": throughput.utilisation if throughput else None,
        "rollout_utilisation": _mean([engine_use(row) for row in rollout]),
        "actions_per_min": throughput.actions_per_minute if throughput else None,
        "staleness_mean": _histogram_mean(histogram),
        "staleness_max": max(histogram, default=None),
        "dropped_stale": census.parts()["stale"],
        "dropped_no_signal": census.parts()["no_signal"],
        "dropped_untrainable": census.parts()["untrainable"],
        "tasks_ever_succeeded": _share_that_succeeded(config, data),
        "tasks_over_80": _tasks_over(0.8, tasks),
        "mean_actions": _mean_actions(config, evaluations),
        "pool_used": data.read(statistics.injections),
        "trained_steps": trained_steps(read_metrics(run.metrics("trainer"))),
        "weight_updates": max((checkpoint.version for checkpoint in data.checkpoints()), default=0),
        "seed": config.seed,
        "lives": state.values["lives"],
        **_fork_figures(forks),
        **({"shown_pages": sum(shown.values())} if shown else {}),
        **_taught_figures(config, taught, asked),
    }
    return ReportData(
        name=config.name,
        description=config.description,
        machine=describe_machine(),
        phases=[(PHASE_TITLES.get(name, name), state.seconds(name)) for name in state.values["phases"]],
        tasks=tasks,
        figures=figures,
        curves=_curves(config, data),
        held_out=[(row["rollouts"], row["success"]) for row in read_metrics(run.metrics("held_out"))],
        turns=turns_of(data.read(statistics.rollout_history)),
        entropies=_entropies(data),
        utilisation=_utilisation(run, rollout),
        staleness=histogram,
        notes=[
            *notes(config, evaluations),
            *untrainable_notes(broken),
            *fork_notes(forks),
            *shown_notes(shown),
            *taught_notes(config, taught, asked, rollout),
            *judge_notes(config, rollout),
            *alarm_notes(run),
            *change_notes(run),
        ],
        config_yaml=run.config.read_text(),
    )


def trained_steps(rows: Iterable[dict[str, Any]]) -> int:
    """Optimizer steps that changed the weights: those without a gradient, such as of groups without signal, did not."""
    return sum("step" in row and row.get("grad_norm", 1.0) != 0.0 for row in rows)


def describe_machine() -> str:
    """Processor, cores and system in one line."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    return f"{model}, {len(os.sched_getaffinity(0))} cores, {platform.system()} {platform.release()}"


def rate_of(scores: Sequence[float]) -> Rate | None:
    """Success rate of one task's episodes with its Wilson interval; None without episodes."""
    if not scores:
        return None
    successes = sum(score > 0.5 for score in scores)
    low, high = wilson_interval(successes, len(scores))
    return Rate(successes / len(scores), low, high, len(scores))


def scores_by_task(evaluation: dict[str, Any] | None) -> dict[str, list[float]]:
    """Scores of an evaluation's episodes that have one, by task."""
    scores: dict[str, list[float]] = {}
    for episode in (evaluation or {}).get("episodes", []):
        if episode["score"] is not None:
            scores.setdefault(episode["task_id"], []).append(float(episode["score"]))
    return scores


def _tasks(config: RunConfig, evaluations: dict[str, Any]) -> list[TaskFigures]:
    labels = ("before", "after", "greedy_before", "greedy_after", "base", "supervised", "shuffled")
    scores = {label: scores_by_task(evaluations.get(label)) for label in labels}
    constant = evaluations.get("constant", {}).get("tasks", {})
    return [
        TaskFigures(
            task_id,
            task_id in config.train_tasks,
            **{label: rate_of(scores[label].get(task_id, [])) for label in labels},
            constant_click=constant.get(task_id, {}).get("rate"),
        )
        for task_id in (*config.train_tasks, *config.evaluation.beside)
    ]


def scored_tasks(config: RunConfig, evaluations: dict[str, Any]) -> list[str]:
    """The trained tasks of which every test has a score: means over others would not compare."""
    tests = [scores_by_task(evaluations[label]) for label in ("before", "after") if label in evaluations]
    return [task for task in config.train_tasks if all(test.get(task) for test in tests)]


def _success(config: RunConfig, evaluations: dict[str, Any]) -> dict[str, float | int | str | None]:
    """Mean success over the trained tasks per evaluation, and every task's own."""
    figures: dict[str, float | int | str | None] = {}
    common = scored_tasks(config, evaluations)
    if len(common) < len(config.train_tasks):
        figures["success_tasks"] = len(common)
    for label in ("before", "after", "greedy_before", "greedy_after", "base", "supervised", "shuffled"):
        by_task = scores_by_task(evaluations.get(label))
        if lost := evaluations.get(label, {}).get("lost"):
            figures[f"lost_{label}"] = lost
        trained = [by_task[task] for task in common if by_task.get(task)]
        if trained and len(trained) == len(common):
            rate = mean_rate(trained)
            key = f"success_{label}"
            figures.update({key: rate.rate, f"{key}_ci_low": rate.low, f"{key}_ci_high": rate.high})
        for task, scores in by_task.items():
            figures[f"task.{task}.{label}"] = sum(scores) / len(scores)
    constant = evaluations.get("constant", {}).get("tasks", {})
    figures.update({f"task.{task}.constant_click": value["rate"] for task, value in constant.items()})
    return figures


def _rl_span(state: RunState) -> tuple[float, float] | None:
    spans = [span for span in state.values["phases"].get("rl", {}).get("spans", []) if span[1] is not None]
    return (spans[0][0], spans[-1][1]) if spans else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def turns_of(history: Sequence[tuple[str, float, int, int]]) -> list[Turns]:
    """How rollouts were spent, in stretches of the training; [] for too few to say."""
    found = []
    for part in np.array_split(np.arange(len(history)), STRETCHES) if len(history) >= 4 * STRETCHES else ():
        tasks: dict[str, list[tuple[float, int, int]]] = {}
        for task, *values in (history[index] for index in part):
            tasks.setdefault(task, []).append(values)
        means = {task: np.mean(np.array(rows, np.float64), axis=0) for task, rows in tasks.items()}
        found += [Turns(task, int(part[-1]) + 1, len(tasks[task]), *map(float, mean)) for task, mean in means.items()]
    return found


def _entropies(data: Insight) -> dict[str, list[float]]:
    """Mean entropy of the policy by step of the episode, of the first and the last rollouts; [] where none is known."""
    names = data.read(trajectory_rows.list_stored, POLICY_SOURCE, None)
    found = {}
    for label, some in (("first", names[:ENTROPY_ROLLOUTS]), ("last", names[-ENTROPY_ROLLOUTS:])):
        steps: list[list[float]] = []
        for trajectory in map(data.files.read_trajectory, some):
            for index, step in enumerate(trajectory.steps):
                if step.entropy is not None:
                    steps += [[] for _ in range(index + 1 - len(steps))]
                    steps[index].append(step.entropy)
        found[label] = [float(np.mean(own)) for own in steps if own]
    return found


def _share_that_succeeded(config: RunConfig, data: Insight) -> float | None:
    """Share of the trained tasks that succeeded at least once while they were trained."""
    best: dict[str, float] = {}
    for task, reward, *_ in data.read(statistics.rollout_history):
        best[task] = max(reward, best.get(task, 0.0))
    return sum(best.get(task, 0.0) >= 1.0 for task in config.train_tasks) / len(config.train_tasks) if best else None


def _tasks_over(success: float, tasks: Sequence[TaskFigures]) -> int | None:
    """Number of trained tasks that succeed so often at the end."""
    known = [task.after.rate for task in tasks if task.trained and task.after is not None]
    return sum(rate >= success for rate in known) if known else None


def _mean_actions(config: RunConfig, evaluations: dict[str, Any]) -> float | None:
    """Actions of an episode at the end, mean over the trained tasks."""
    rows = {row["task_id"]: row["mean_steps"] for row in evaluations.get("after", {}).get("scores", [])}
    return _mean([rows.get(task) for task in config.train_tasks])


def _histogram_mean(histogram: dict[int, int]) -> float | None:
    total = sum(histogram.values())
    return sum(lag * count for lag, count in histogram.items()) / total if total else None


def curve_window(rollouts: int) -> int:
    """Return over how many of a task's rollouts its learning curve is averaged, so that it is a curve and no point."""
    return max(1, min(CURVE_WINDOW, rollouts // 4))


def _curves(config: RunConfig, data: Insight) -> list[Curve]:
    history = data.read(statistics.rollout_history)
    curves = []
    for task_id in config.train_tasks:
        points = [(index, reward) for index, (task, reward, *_) in enumerate(history) if task == task_id]
        if points:
            xs, ys = smooth([x for x, _ in points], [y for _, y in points], curve_window(len(points)))
            curves.append(Curve(task_id, np.array(xs), np.array(ys)))
    return curves


def _utilisation(run: RunDirectory, rollout: list[dict[str, Any]]) -> TimeSeries | None:
    rows = [row for row in rollout if isinstance(row.get("env_utilisation"), (int, float))]
    if len(rows) < 2:
        return None
    start = rows[0]["t"]
    seconds = np.array([row["t"] - start for row in rows])
    values = {
        "desktops": np.array([row["env_utilisation"] for row in rows]),
        "engines": np.array([engine_use(row) or 0.0 for row in rows]),
    }
    trainer = [row for row in read_metrics(run.metrics("trainer")) if "perf/step_s" in row]
    if trainer:
        values["trainer"] = _busy_share(trainer, start, seconds)
    edges = np.linspace(seconds[0], seconds[-1] + 1e-6, min(SERIES_POINTS, len(rows)) + 1)
    places = np.clip(np.digitize(seconds, edges) - 1, 0, len(edges) - 2)
    keep = [index for index in range(len(edges) - 1) if (places == index).any()]
    binned = {name: np.array([series[places == index].mean() for index in keep]) for name, series in values.items()}
    return TimeSeries(np.array([(edges[index] + edges[index + 1]) / 2 for index in keep]), binned)


def _busy_share(trainer: list[dict[str, Any]], start: float, seconds: np.ndarray) -> np.ndarray:
    """Share of each interval that the trainer computed: every row is the end of a step and knows how long it took."""
    busy = np.zeros(len(seconds))
    edges = np.append(seconds, seconds[-1] + 1.0)
    for row in trainer:
        end = row["t"] - start
        begin = end - (row["perf/step_s"] or 0.0)
        overlap = np.minimum(edges[1:], end) - np.maximum(edges[:-1], begin)
        busy += np.clip(overlap, 0.0, None)
    return np.clip(busy / np.maximum(np.diff(edges), 1e-6), 0.0, 1.0)


def untrainable_notes(broken: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return a sentence for each way in which rollouts ended without a score that can be trained on, tasks by name."""
    return [
        f"Rollouts that ended as {terminal} and taught nothing: {sum(tasks.values())}, by task {_most_named(tasks)}. "
        "The rollout service's log says why."
        for terminal, tasks in sorted(broken.items())
    ]


def _fork_figures(forks: statistics.ForkCounts) -> dict[str, int]:
    """Return the numbers of a run with forks; nothing for one without."""
    if not forks.begun:
        return {}
    given_up = sum(forks.given_up.values())
    return {"forks": forks.begun, "forks_given_up": given_up, "fork_rollouts": forks.rollouts}


def fork_notes(forks: statistics.ForkCounts) -> list[str]:
    """Return what the report says of forks, tasks whose forks were given up by name."""
    if not forks.begun:
        return []
    said = (
        f"Forks: {forks.begun} episodes were played on from one of their steps, with {forks.rollouts} scored "
        "continuations, which count as rollouts; their replayed actions are among the actions."
    )
    tasks = ", ".join(f"{task} ({count})" for task, count in forks.given_up.items())
    gone = sum(forks.given_up.values())
    return [f"{said} {gone} of them were given up, since a replay came out differently: {tasks}." if gone else said]


def shown_notes(shown: Mapping[str, int]) -> list[str]:
    """Return what the report says of pages that the oracle played because a whole group had failed on them, by task."""
    if not shown:
        return []
    return [
        f"Shown pages: the oracle also played {sum(shown.values())} pages on which a whole group had failed: "
        f"{_most_named(shown)}. Their actions are among the actions."
    ]


def _most_named(counts: Mapping[str, int]) -> str:
    """Return the tasks with the highest counts, and how many others there are."""
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    tasks = ", ".join(f"{task} ({count})" for task, count in most[:MOST_NAMED])
    return tasks + (f" and {len(most) - MOST_NAMED} other tasks" if len(most) > MOST_NAMED else "")


def _taught_figures(
    config: RunConfig, taught: statistics.TaughtCounts, asked: statistics.AskedCounts
) -> dict[str, int]:
    """Return the numbers of a run with a teacher; nothing for one without."""
    if config.teacher.kind is None:
        return {}
    return {
        "taught_episodes": sum(taught.episodes.values()),
        "taught_steps": taught.steps,
        "taught_groups": taught.groups,
        "untaught_episodes": asked.untaught,
    }


def taught_notes(
    config: RunConfig,
    taught: statistics.TaughtCounts,
    asked: statistics.AskedCounts = NOBODY_ASKED,
    rollout: Sequence[Mapping[str, Any]] = (),
) -> list[str]:
    """Return what the report says of the teacher, tasks that it taught most by name.

    Args:
        config: the run.
        taught: what it taught.
        asked: what it was to teach.
        rollout: metrics of the rollout service.
    """
    if config.teacher.kind is None:
        return []
    missed = _untaught(asked, rollout)
    if not taught.episodes:
        return [f"The teacher {config.teacher.kind} taught nothing: see the rollout service's log.", *missed]
    return [
        f"Teacher: {config.teacher.kind} taught {taught.steps} steps of {sum(taught.episodes.values())} rollouts, by "
        f"task {_most_named(taught.episodes)}; {taught.groups} groups with equal rewards were trained on only because "
        "of that. Success, before and after, is the evaluators', and the policy is tested without the teacher.",
        *missed,
    ]


def _untaught(asked: statistics.AskedCounts, rollout: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence about the episodes that got no lesson, and one about the time without the teacher."""
    said = []
    if asked.untaught:
        said.append(
            f"{asked.untaught} of {asked.episodes} episodes that the teacher was to teach came without a lesson."
        )
    gone = [(row, after) for row, after in pairwise(rollout) if (row.get("teacher") or {}).get("away")]
    last = [row["teacher"]["away"] for row in rollout[-1:] if (row.get("teacher") or {}).get("away")]
    if reasons := [row["teacher"]["away"] for row, _ in gone] or last:
        seconds = sum(after["t"] - row["t"] for row, after in gone)
        end = ", and was not back at the end" if last else ""
        said.append(f"The teacher was away for {seconds:.0f} s{end}; training went on without it: {reasons[0]}.")
    return said


def judge_notes(config: RunConfig, rollout: Sequence[dict[str, Any]] = ()) -> list[str]:
    """Return what the report says of judges: who took part in the reward of training, what they did, what is wrong.

    Args:
        config: the run.
        rollout: metrics of the rollout service.
    """
    names = [name for name, one in config.rewards.items() if one.weight]
    part = (
        f"Judges took part in the reward of training: {', '.join(names)}. Success, scores and curves on this page are "
        "the evaluators' alone."
    )
    did = [
        f"Judge {name}: {'; '.join([judge_said(counts), *judge_faults(counts).values()])}."
        for name, counts in judge_counts(last_of_lives(rollout)).items()
    ]
    return [*([part] if names else []), *judge_warnings(config.rewards), *did]


def change_notes(run: RunDirectory) -> list[str]:
    """A sentence for each setting that was changed when the run was resumed."""
    return [f"Setting changed in life {life}: {change}." for life, change in recorded(run.changes)]


def alarm_notes(run: RunDirectory) -> list[str]:
    """A sentence for each alarm that the trainer raised, with the number of steps."""
    counts = count_steps(read_metrics(run.metrics("trainer")))
    return [
        f"Alarm {name}: {alarm_named(name).meaning}, in {count} steps; {alarm_named(name).advice}."
        for name, count in counts.items()
    ]


def notes(config: RunConfig, evaluations: dict[str, Any]) -> list[str]:
    """Return what a reader must know to judge the figures."""
    evaluation = config.evaluation
    said = [NOTE_SUCCESS.format(temperature=evaluation.temperature, episodes=evaluation.episodes)]
    said += [NOTES_SHIPPED[config.model.path]] if config.model.path in NOTES_SHIPPED else []
    said += [note for label, note in NOTES_ON_CONTROLS.items() if label in evaluations]
    said += [
        f"{lost} episodes of the test '{label}' were lost by the environment, an evaluator or an engine: they have no "
        "score, and the success before and after is that of the tasks with a score in both."
        for label, found in evaluations.items()
        if (lost := found.get("lost"))
    ]
    if evaluation.beside:
        said.append("Tasks marked 'not trained' were only evaluated.")
    return said
