"""The command `dart-agent`: let a policy play, score it. See `record_commands` for records."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dart_agent.commands import ground_commands, record_commands
from dart_agent.commands.agent_init import init
from dart_agent.commands.judge_command import judge_command
from dart_agent.commands.preset_commands import presets_command
from dart_agent.engines.base.engine import EngineError
from dart_agent.episodes.episode_files import EpisodeWriter, write_json
from dart_agent.episodes.play import EpisodeRecorder, OutcomeOnly, play
from dart_agent.episodes.trajectory import Step, Trajectory
from dart_agent.evaluation.conditions import SizedSessions, protocol_named, software
from dart_agent.evaluation.difficulty import write_difficulty
from dart_agent.evaluation.evaluate import evaluate, open_cluster
from dart_agent.evaluation.evaluation_directory import EvaluationDirectory, Plan, app_of
from dart_agent.evaluation.score_tables import (
    UNREAD,
    ending_lines,
    group_row,
    group_table,
    reason_lines,
    score_row,
    score_table,
)
from dart_agent.evaluation.scores import LostEpisodes, TaskScore, refuse_lost, score_groups, total_score
from dart_agent.policies.policy_factory import PolicyOptions, open_policies
from dart_agent.prompting.conversation import ConversationConfig
from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.client.cluster_place import PATIENCE_S, place_of
from dart_gym.commands.added_commands import mount_added
from dart_gym.commands.json_output import JsonOption
from dart_gym.commands.program import Program, add_common_options, guarded
from dart_gym.commands.section_options import takes
from dart_gym.core.actions import action_from_dict
from dart_gym.core.errors import ConfigurationError
from dart_gym.core.outcomes import TerminalState
from dart_gym.tasks.catalog import registry
from dart_gym.tasks.requirements.place import Place
from dart_gym.tasks.requirements.runnable import check_runnable, named_tasks
from dart_gym.utils.shown_text import printable

app = typer.Typer(
    name="dart-agent",
    cls=Program,
    help="Policies: let one play, score one, compare two, look at what they did.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
add_common_options(app, "dart-agent")
console = Console()
record_commands.mount(app)
app.command("judge")(judge_command)
app.command()(init)
app.command("presets")(presets_command)
app.add_typer(ground_commands.app, name="ground")

Url = Annotated[str | None, typer.Option("--url", help="Of a running cluster; a private one is started without it.")]
TokenEnv = Annotated[str | None, typer.Option(help="Environment variable with the cluster's token.")]
MaxSteps = Annotated[int | None, typer.Option(min=1, help="Step limit; the task's own without it.")]
Pacing = Annotated[
    str | None, typer.Option(help='How long desktops wait for their screens: "settle", or "osworld" as OSWorld does.')
]
Timeout = Annotated[
    float | None,
    typer.Option(
        min=0.1, help="Seconds for one decision of the policy, and for a cluster to answer; their own without it."
    ),
]
_policy_options = takes(
    PolicyOptions,
    of_run="agent",
    run_fields={*ConversationConfig.model_fields, "format"},
    leave_out=("call_user",),
)


@app.command()
@_policy_options
def run(
    options: PolicyOptions,
    task: Annotated[str | None, typer.Argument(help="Task id, or path of an OSWorld JSON.")] = None,
    task_option: Annotated[str | None, typer.Option("--task", help="The same, as an option.")] = None,
    seed: Annotated[int, typer.Option(help="Of the task's initial state.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Record the episode here: `dart-agent view` shows it.")] = None,
    url: Url = None,
    token_env: TokenEnv = None,
    max_steps: MaxSteps = None,
    pacing: Pacing = None,
    timeout: Timeout = None,
) -> None:
    """Play one episode and print every step; exit status 1 where it was lost."""
    chosen = task or task_option
    if chosen is None or (task and task_option):
        raise ConfigurationError("name one task: dart-agent run TASK, or dart-agent run --task TASK")
    check_runnable([registry.get_task(chosen)], _place(url, token_env, timeout))
    if out is not None and out.exists():
        raise ConfigurationError(f"{out} exists already: choose another --out for the recorded episode")

    async def play_one() -> Trajectory:
        async with (
            open_policies(options, timeout) as make_policy,
            _cluster(url, token_env, 1, timeout) as client,
            client.session() as session,
        ):
            with _writer(out, chosen, seed, options) as writer:
                episode = await play(
                    make_policy(session),
                    session,
                    chosen,
                    seed=seed,
                    max_steps=max_steps,
                    pacing=pacing,
                    turn_limit_s=timeout,
                    recorder=PrintedSteps(writer or OutcomeOnly()),
                )
                return writer.finish(episode) if writer is not None else episode

    episode = asyncio.run(play_one())
    score = "none" if episode.score is None else f"{episode.score:g}"
    shown = f"{episode.terminal} after {episode.num_actions} steps, score {score} {episode.detail}"
    for line in (f"instruction: {episode.instruction}", shown):
        console.print(printable(line), markup=False, highlight=False)
    if episode.lost_by:
        raise LostEpisodes(f"the episode was lost by the {episode.lost_by}: {episode.detail or episode.terminal}")


@app.command("eval")
@_policy_options
def evaluate_command(
    options: PolicyOptions,
    tasks: Annotated[list[str] | None, typer.Argument(help="Task ids, suites, paths of OSWorld JSONs.")] = None,
    suites: Annotated[list[str] | None, typer.Option("--suite", help="The same, as options.")] = None,
    episodes: Annotated[int, typer.Option("--n", min=1, help="Episodes per task.")] = 10,
    first_seed: Annotated[int, typer.Option(min=0, help="Seeds first_seed, first_seed + 1, ...")] = 0,
    concurrency: Annotated[int, typer.Option("--parallel", min=1, help="Desktops at the same time.")] = 2,
    k: Annotated[int | None, typer.Option("--k", min=1, help="Of pass@k; the number of episodes without it.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Record every episode here; the same command again goes on where it stopped.")
    ] = None,
    output: JsonOption = None,
    difficulty: Annotated[
        str | None, typer.Option(help="Also keep the pass rates, by policy, with this suite or in this file.")
    ] = None,
    url: Url = None,
    token_env: TokenEnv = None,
    max_steps: MaxSteps = None,
    pacing: Pacing = None,
    protocol: Annotated[
        str | None, typer.Option(help='Pacing, step limit and screen of a benchmark\'s runner: "osworld-verified".')
    ] = None,
    timeout: Timeout = None,
    max_lost: Annotated[
        int | None,
        typer.Option(min=0, help="Exit status 1 where more episodes are lost; without it, where all of them are."),
    ] = None,
) -> None:
    """Score a policy: pass@1 and pass@k by application, with 95 % intervals; exit status 1 where all was lost."""
    chosen = named_tasks([*(tasks or []), *(suites or [])], _place(url, token_env, timeout))
    if not chosen:
        raise ConfigurationError("name tasks or suites: dart-agent eval miniwob, or dart-agent eval --suite miniwob")
    if k is not None and k > episodes:
        raise ConfigurationError(f"pass@{k} needs at least {k} episodes per task: raise --n from {episodes}")
    seeds = range(first_seed, first_seed + episodes)
    played_as = protocol_named(protocol, pacing, max_steps) if protocol else None
    if played_as:
        pacing, max_steps = played_as.pacing, played_as.max_steps
    told = {"pacing": pacing, "protocol": protocol, "software": software(options.engine_url)}
    settings = {**options.settings(), **told}

    reasons: Counter[str] = Counter()
    unread: Counter[str] = Counter()

    async def play_all() -> list[TaskScore]:
        async with contextlib.AsyncExitStack() as stack:
            make_policy = await stack.enter_async_context(open_policies(options, timeout))
            directory = None
            if out is not None:
                plan = Plan(options.policy, tuple(chosen), tuple(seeds), max_steps, settings)
                directory = stack.enter_context(EvaluationDirectory(out, plan, options.decoder()))
            client = await stack.enter_async_context(_cluster(url, token_env, concurrency, timeout))
            done = len(directory.known()) if directory else 0
            return await evaluate(
                SizedSessions(client, played_as.screen) if played_as else client,
                make_policy,
                chosen,
                seeds,
                concurrency=concurrency,
                max_steps=max_steps,
                pacing=pacing,
                turn_limit_s=timeout,
                directory=directory,
                on_episode=noted(reasons, unread, stack.enter_context(_progress(done, len(chosen) * episodes))),
            )

    scores = asyncio.run(play_all())
    groups = score_groups(scores, {task: app_of(task) for task in chosen}, k or episodes)
    console.print(score_table(scores))
    console.print(group_table(groups))
    for line in [*ending_lines(groups[-1].total), *reason_lines(reasons), *reason_lines(unread, UNREAD)]:
        console.print(printable(line), markup=False, highlight=False)
    result = {
        "policy": options.policy,
        "settings": {**settings, "max_steps": max_steps},
        "scores": [score_row(score) for score in [*scores, total_score(scores)]],
        "apps": [group_row(group) for group in groups],
    }
    if difficulty is not None:
        name = " ".join(filter(None, (options.preset or options.policy, options.model and Path(options.model).name)))
        counts = {score.task_id: (score.successes, score.episodes) for score in scores}
        console.print(f"{write_difficulty(difficulty, name, counts)}: {name}", markup=False, highlight=False)
    for path in (output, out and out / "scores.json"):
        if path is not None:
            write_json(path, result)
    why = reasons.most_common(1)[0][0] if reasons else ""
    refuse_lost(groups[-1].total, max_lost, printable(why))


def noted(
    reasons: Counter[str], unread: Counter[str], then: Callable[[Trajectory], None]
) -> Callable[[Trajectory], None]:
    """Count why episodes were lost and why last responses could not be read, and hand the episodes on."""

    def told(episode: Trajectory) -> None:
        if episode.lost_by:
            reasons[episode.detail or episode.error or str(episode.terminal)] += 1
        elif episode.terminal is TerminalState.PARSE_ERROR:
            unread[episode.error] += 1
        then(episode)

    return told


class PrintedSteps:
    """A recorder that prints every step, and hands it on to another."""

    def __init__(self, recorder: EpisodeRecorder) -> None:
        self._recorder = recorder

    def begin(self, trajectory: Trajectory) -> Trajectory:
        """Pass the start of the episode on."""
        return self._recorder.begin(trajectory)

    def step(self, step: Step) -> Step | None:
        """Print the thought and the errors of a step, then pass it on."""
        if step.thought:
            console.print(f"thought: {printable(step.thought)}", style="dim", markup=False, highlight=False)
        for action in step.actions:
            console.print(repr(action_from_dict(action)), markup=False)
        for problem in (step.error, step.action_error):
            if problem:
                console.print(printable(problem), style="red", markup=False)
        return self._recorder.step(step)


def _writer(
    out: Path | None, task: str, seed: int, options: PolicyOptions
) -> contextlib.AbstractContextManager[EpisodeWriter | None]:
    if out is None:
        return contextlib.nullcontext()
    return EpisodeWriter(out, task, seed, policy=options.policy, app=app_of(task), decode=options.decoder())


@contextlib.contextmanager
def _progress(done: int, total: int) -> Iterator[Callable[[Trajectory], None]]:
    """A progress bar; yields what is to be told about each episode."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=console, transient=True) as progress:
        bar = progress.add_task("", total=total, completed=done)
        succeeded = lost = 0

        def told(episode: Trajectory) -> None:
            nonlocal succeeded, lost
            succeeded, lost = succeeded + episode.success, lost + bool(episode.lost_by)
            said = f"{succeeded} succeeded" + (f", {lost} lost" if lost else "") + f", last: {episode.task_id}"
            progress.update(bar, advance=1, description=said)

        yield told


def _cluster(
    url: str | None, token_env: str | None, desktops: int, timeout_s: float | None
) -> AbstractAsyncContextManager[ClusterClient]:
    """A running cluster, or a private one for the time of the command."""
    return open_cluster(url, _token(url, token_env), desktops=desktops, timeout_s=timeout_s)


def _place(url: str | None, token_env: str | None, timeout_s: float | None) -> Place:
    """Where the desktops are, which says what they lack."""
    return place_of(url, _token(url, token_env), patience_s=timeout_s or PATIENCE_S)


def _token(url: str | None, token_env: str | None) -> str | None:
    if url is None or token_env is None:
        return None
    if not os.environ.get(token_env):
        raise ConfigurationError(f"the environment variable {token_env} named by --token-env is not set")
    return os.environ[token_env]


mount_added(app, "agent")


def main() -> None:
    """Run the command; an error is one line, not a traceback."""
    guarded("dart-agent", app, (EngineError,))


if __name__ == "__main__":
    main()
