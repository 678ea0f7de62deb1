"""The command `dart-agent`: let a policy play, score it, build the tiny model."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Column, Table

from dart_agent.bench.cli import app as bench_app
from dart_agent.conversation import ConversationConfig
from dart_agent.engines.base import Engine, Sampling
from dart_agent.evaluate import (
    PlayedEpisode,
    PolicyFactory,
    TaskScore,
    evaluate,
    open_cluster,
    play_episode,
    total_score,
)
from dart_agent.policies.loading import model_factory, policy_factory
from dart_agent.policies.policy import Decision
from dart_gym.cluster.client import ClusterClient
from dart_gym.errors import ConfigurationError, DartGymError
from dart_gym.outcomes import Observation, StepResult
from dart_gym.tasks import registry

app = typer.Typer(
    name="dart-agent",
    help="Policies: let one play, score one, build the tiny model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(bench_app, name="bench")
console = Console()

Policy = Annotated[str, typer.Option("--policy", help='"random", "oracle", "vlm", or module:Class of your own.')]
Url = Annotated[str | None, typer.Option("--url", help="Of a running cluster; a private one is started without it.")]
TokenEnv = Annotated[str | None, typer.Option(help="Environment variable with the cluster's token.")]
MaxSteps = Annotated[int | None, typer.Option(min=1, help="Step limit; the task's own without it.")]
Model = Annotated[Path | None, typer.Option(help="vlm: model directory.")]
EngineUrl = Annotated[str | None, typer.Option(help="vlm: a running engine server; else the model is loaded here.")]
Prompt = Annotated[str, typer.Option(help='vlm: "ui_tars" or "short".')]
Screenshots = Annotated[int, typer.Option(min=1, help="vlm: newest screenshots in the prompt.")]
Texts = Annotated[int, typer.Option(min=0, help="vlm: newest responses in the prompt.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="vlm: longest response.")]
Temperature = Annotated[float, typer.Option(min=0.0, help="vlm: 0 for greedy.")]


@app.command()
def run(
    task: Annotated[str, typer.Argument(help="Task id, or path of an OSWorld JSON.")],
    policy: Policy = "random",
    seed: Annotated[int, typer.Option(help="Of the task's initial state.")] = 0,
    url: Url = None,
    token_env: TokenEnv = None,
    max_steps: MaxSteps = None,
    model: Model = None,
    engine_url: EngineUrl = None,
    prompt: Prompt = "ui_tars",
    screenshots: Screenshots = 5,
    texts: Texts = 35,
    max_tokens: MaxTokens = 500,
    temperature: Temperature = 1.0,
) -> None:
    """Play one episode and print every step."""

    async def play() -> PlayedEpisode:
        conversation = _conversation(prompt, screenshots, texts)
        sampling = Sampling(max_tokens=max_tokens, temperature=temperature)
        async with (
            _policies(policy, model, engine_url, conversation, sampling) as make_policy,
            _cluster(url, token_env, 1) as client,
            client.session() as session,
        ):
            return await play_episode(
                session, make_policy(session), task, seed=seed, max_steps=max_steps, on_step=_print_step
            )

    episode = asyncio.run(play())
    score = "none" if episode.score is None else f"{episode.score:g}"
    console.print(f"instruction: {episode.instruction}", markup=False, highlight=False)
    console.print(f"{episode.terminal} after {episode.steps} steps, score {score} {episode.evaluation.detail}")


@app.command("eval")
def evaluate_command(
    tasks: Annotated[list[str], typer.Argument(help="Task ids, names of suites, paths of OSWorld JSONs.")],
    policy: Policy = "random",
    episodes: Annotated[int, typer.Option(min=1, help="Per task.")] = 10,
    first_seed: Annotated[int, typer.Option(min=0, help="Seeds first_seed, first_seed + 1, ...")] = 0,
    concurrency: Annotated[int, typer.Option(min=1, help="Desktops at the same time.")] = 2,
    output: Annotated[Path | None, typer.Option("--json", help="Also write the scores to this file.")] = None,
    url: Url = None,
    token_env: TokenEnv = None,
    max_steps: MaxSteps = None,
    model: Model = None,
    engine_url: EngineUrl = None,
    prompt: Prompt = "ui_tars",
    screenshots: Screenshots = 5,
    texts: Texts = 35,
    max_tokens: MaxTokens = 500,
    temperature: Temperature = 1.0,
) -> None:
    """Score a policy: success rates with 95 % intervals."""
    chosen = expand_tasks(tasks)

    async def play() -> list[TaskScore]:
        conversation = _conversation(prompt, screenshots, texts)
        sampling = Sampling(max_tokens=max_tokens, temperature=temperature)
        async with (
            _policies(policy, model, engine_url, conversation, sampling) as make_policy,
            _cluster(url, token_env, concurrency) as client,
        ):
            seeds = range(first_seed, first_seed + episodes)
            with console.status("playing") as status:
                done = 0

                def told(episode: PlayedEpisode) -> None:
                    nonlocal done
                    done += 1
                    status.update(f"{done}/{len(chosen) * episodes} episodes, last: {episode.task_id}")

                return await evaluate(
                    client,
                    make_policy,
                    chosen,
                    seeds,
                    concurrency=concurrency,
                    max_steps=max_steps,
                    on_episode=told,
                )

    scores = asyncio.run(play())
    console.print(score_table(scores))
    if output is not None:
        rows = [_score_row(score) for score in [*scores, total_score(scores)]]
        output.write_text(json.dumps({"policy": policy, "scores": rows}, indent=2) + "\n")


@app.command()
def tiny(
    directory: Annotated[Path, typer.Argument(help="Where to write it.")],
    seed: Annotated[int, typer.Option(help="Of the initial weights.")] = 0,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="field=value of TinyModelConfig.")] = None,
) -> None:
    """Build the untrained tiny vision-language model."""
    from dart_agent.tiny import TinyModelConfig, build_tiny_model, config_from_text

    config = config_from_text(overrides or [], TinyModelConfig())
    build_tiny_model(directory, seed=seed, config=config)
    size = sum(path.stat().st_size for path in directory.iterdir())
    console.print(f"{directory}: {size / 1e6:.1f} MB", highlight=False)


def expand_tasks(names: list[str]) -> list[str]:
    """Task ids of ids and suite names; paths of OSWorld JSONs stay as they are.

    Raises:
        UnknownTaskError: neither a suite nor a task.
        TaskError: a malformed JSON.
    """
    suites = set(registry.suites())
    found: list[str] = []
    for name in names:
        if name in suites:
            found += registry.task_ids(name)
        else:
            task = registry.get_task(name)
            found.append(name if name.endswith(".json") else task.id)
    return list(dict.fromkeys(found))


def score_table(scores: list[TaskScore]) -> Table:
    """Scores as people read them."""
    table = Table(Column("task", no_wrap=True), "episodes", "success", "95 % interval", "mean score", "steps", "lost")
    for score in [*scores, total_score(scores)] if len(scores) > 1 else scores:
        rate = "-" if math.isnan(score.rate) else f"{100 * score.rate:.0f} %"
        interval = f"{100 * score.low:.0f} - {100 * score.high:.0f} %"
        mean, steps = f"{score.mean_score:.2f}", f"{score.mean_steps:.1f}"
        table.add_row(score.task_id, str(score.episodes), rate, interval, mean, steps, str(score.lost))
    return table


def _score_row(score: TaskScore) -> dict[str, object]:
    def finite(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return {
        "task_id": score.task_id,
        "episodes": score.episodes,
        "successes": score.successes,
        "rate": finite(score.rate),
        "low": score.low,
        "high": score.high,
        "mean_score": finite(score.mean_score),
        "mean_steps": finite(score.mean_steps),
        "lost": score.lost,
        "terminals": score.terminals,
    }


def _print_step(observation: Observation, decision: Decision, result: StepResult) -> None:
    if decision.thought:
        console.print(f"thought: {decision.thought}", style="dim", markup=False, highlight=False)
    for action in decision.actions:
        console.print(repr(action), markup=False)
    for problem in (decision.error, result.observation.action_error):
        if problem:
            console.print(problem, style="red", markup=False)


def _conversation(style: str, screenshots: int, texts: int) -> ConversationConfig:
    known: dict[str, Literal["ui_tars", "short"]] = {"ui_tars": "ui_tars", "short": "short"}
    if style not in known:
        raise ConfigurationError(f"unknown prompt style {style!r}; known: {', '.join(known)}")
    return ConversationConfig(style=known[style], screenshots=screenshots, texts=texts)


@contextlib.asynccontextmanager
async def _policies(
    spec: str, model: Path | None, engine_url: str | None, conversation: ConversationConfig, sampling: Sampling
) -> AsyncIterator[PolicyFactory]:
    """The factory of a policy, with an engine around it for "vlm"."""
    if spec != "vlm":
        yield policy_factory(spec)
        return
    if model is None:
        raise ConfigurationError("--policy vlm needs --model DIR: its tokenizer, and its weights without --engine-url")
    engine = _engine(model, engine_url)
    try:
        yield model_factory(engine, str(model), conversation, sampling, "ui_tars")
    finally:
        await engine.close()


def _engine(model: Path, url: str | None) -> Engine:
    if url is not None:
        from dart_agent.engines.remote import RemoteEngine

        return RemoteEngine(url)
    from dart_agent.engines.transformers import TransformersEngine

    return TransformersEngine(model)


def _cluster(url: str | None, token_env: str | None, desktops: int) -> AbstractAsyncContextManager[ClusterClient]:
    """A running cluster, or a private one for the time of the command."""
    if url is None or token_env is None:
        return open_cluster(url, desktops=desktops)
    if not os.environ.get(token_env):
        raise ConfigurationError(f"the environment variable {token_env} named by --token-env is not set")
    return open_cluster(url, os.environ[token_env])


def main() -> None:
    """Run the command; a user's error is one line, not a traceback."""
    try:
        app()
    except DartGymError as error:
        sys.exit(f"dart-agent: {error}")


if __name__ == "__main__":
    main()
