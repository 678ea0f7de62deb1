"""The commands `dart-train bench ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dart_gym.commands.json_output import JsonOption, write_json
from dart_lab.gym.gym_commands import finish, progress

app = typer.Typer(help="Measure on this machine.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure on this machine; comparisons are ratios from one run."""


@app.command()
def calibrate(
    json: JsonOption = None,
    hours: Annotated[float, typer.Option(help="Simulated hours of every run, after the first.")] = 20.0,
) -> None:
    """How well the simulated coupled loop fits the paper's, by the two numbers that nobody published."""
    from dart_lab.efficiency.study import Length, Runner, calibrate
    from dart_lab.efficiency.workload import Setting

    with Runner(Length(hours=hours)) as runner:
        found = calibrate(runner, Setting())
    rows = [{"tail": tail, "train_s_per_action": train_s, "misfit": value} for (tail, train_s), value in found.items()]
    write_json(json, rows)
    for (tail, train_s), value in sorted(found.items(), key=lambda item: item[1]):
        print(f"misfit {value:.3f}  tail {tail:g}  train_s_per_action {train_s:g}")


@app.command()
def efficiency(
    json: JsonOption = None,
    plots: Annotated[Path | None, typer.Option(help="Also draw pictures into this directory.")] = None,
    hours: Annotated[float, typer.Option(help="Simulated hours of every run, after the first.")] = 10.0,
    seeds: Annotated[int, typer.Option(help="Seeds with which every simulated run is repeated.")] = 3,
    real: Annotated[bool, typer.Option("--real", help="On real desktops of this machine instead.")] = False,
    repeat: Annotated[int, typer.Option(help="With --real: runs of each mode.")] = 3,
    config: Annotated[Path, typer.Option(help="With --real: what is run.")] = Path("configs/efficiency.yaml"),
    rollouts: Annotated[int, typer.Option(help="With --real: rollouts of each run.")] = 120,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="With --real: override of its settings.")
    ] = None,
) -> None:
    """Measure what decoupling is worth: coupled, task-wise and DART rollouts, simulated as published (minutes)."""
    if real:
        from dart_lab.efficiency.real_bench import measure
        from dart_train.config.run_config import load_config

        finish(measure(load_config(config, overrides), rollouts=rollouts, repeat=repeat, progress=progress), json)
        return
    from dart_lab.efficiency import efficiency_bench as bench
    from dart_lab.efficiency.study import Length

    found = bench.simulate(Length(hours=hours, seeds=tuple(range(seeds))), progress)
    console = Console()
    bench.print_tables(found, console)
    if plots is not None:
        bench.write_plots(found, plots)
    finish(bench.report(found), json)


@app.command()
def growth(
    json: JsonOption = None,
    hours: Annotated[float, typer.Option(help="Simulated hours of every run, after the ten minutes left out.")] = 0.1,
) -> None:
    """How throughput grows from 20 to 5,000 desktops and 1 to 64 engines, simulated (minutes)."""
    from dart_lab.efficiency import efficiency_bench as bench
    from dart_lab.efficiency.study import Length, Runner, growth
    from dart_lab.efficiency.workload import Setting

    with Runner(Length(hours=hours, skip_hours=1 / 6, seeds=(0,))) as runner:
        found = growth(runner, Setting())
    rows = [
        {
            "desktops": desktops,
            "engines": engines,
            "steps_per_minute": one.steps,
            "step_s": one.step_s,
            "env_utilisation": one.env_utilisation,
            "rollout_utilisation": one.rollout_utilisation,
        }
        for desktops, row in found.items()
        for engines, one in row.items()
    ]
    write_json(json, rows)
    Console(width=160).print(bench.growth_table(found))


@app.command()
def scale(
    json: JsonOption = None,
    desktops: Annotated[int, typer.Option(min=1, help="Drawn desktops.")] = 1000,
    servers: Annotated[int, typer.Option(min=1, help="Servers of desktops.")] = 4,
    engines: Annotated[int, typer.Option(min=1, help="Stand-ins for vLLM servers, each as slow as a 7B model.")] = 32,
    seconds: Annotated[float, typer.Option(min=1, help="For which the service plays, after the first ones.")] = 60.0,
    steps: Annotated[int, typer.Option(min=1, max=5, help="Of an episode.")] = 2,
    image_seconds: Annotated[float, typer.Option(min=0, help="Of each measurement with large screenshots.")] = 10.0,
) -> None:
    """One rollout service with 1,000 drawn desktops, and requests with large screenshots (minutes, an idle machine)."""
    import asyncio

    from dart_lab.train.scale_bench import Sizes, measure

    sizes = Sizes(desktops, servers, engines, seconds, steps=steps, image_s=image_seconds)
    finish(asyncio.run(measure(sizes, progress)), json)


@app.command()
def trainer(
    json: JsonOption = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    model: Annotated[
        str | None, typer.Option(help="tiny, 3b or 7b (Qwen2.5-VL's shapes, random weights; 7b with LoRA).")
    ] = None,
    trajectories: Annotated[int | None, typer.Option(min=1, help="In the batch; 1, or 4 on a GPU.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Of each trajectory.")] = 10,
    screen: Annotated[
        str | None, typer.Option(help="Size of screenshots: 448x336 on the CPU, 1932x1092 on a GPU, if not given.")
    ] = None,
    response: Annotated[int | None, typer.Option(min=2, help="Tokens of each response; 16, or 150 on a GPU.")] = None,
    micro_batch_tokens: Annotated[
        int | None, typer.Option(min=1, help="Of one forward pass; 4096, or 16384 on a GPU and with --recorded.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Measurements of each way.")] = 3,
    recorded: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Count the tokens of this run's rows and prefix trees instead.")
    ] = None,
) -> None:
    """Merged rows and cached image work against separate rows, on the same trajectories (about a minute)."""
    if recorded is not None:
        from dart_lab.train.row_sharing import LONGEST, of_run

        finish(of_run(recorded, micro_batch_tokens or LONGEST), json)
        return
    from dart_lab.train.bench_models import MODELS
    from dart_lab.train.trainer_bench import Options, measure

    gpu = device == "cuda"
    model = model or ("3b" if gpu else "tiny")
    if device not in ("cpu", "cuda") or model not in MODELS:
        raise typer.BadParameter(f"--device is cpu or cuda, --model one of {', '.join(MODELS)}")
    width, _, height = (screen or ("1932x1092" if gpu else "448x336")).partition("x")
    if not (width.isdigit() and height.isdigit()):
        raise typer.BadParameter(f"--screen {screen!r} is not WIDTHxHEIGHT, such as 1932x1092")
    options = Options(
        device=device,
        model=model,
        trajectories=trajectories or (4 if gpu else 1),
        steps=steps,
        screen=(int(width), int(height)),
        response=response or (150 if gpu else 16),
        micro_batch_tokens=micro_batch_tokens or (16384 if gpu else 4096),
        repeat=repeat,
    )
    finish(measure(options, progress), json)


@app.command()
def parity(json: JsonOption = None) -> None:
    """Log-probabilities of engine, trainer and model on tiny models of every family (a minute)."""
    from dart_lab.train.parity_bench import measure

    finish(measure(progress), json)


@app.command()
def memory(
    json: JsonOption = None,
    model: Annotated[str, typer.Option(help="2m, 8m or 20m: weights of a tiny Qwen2.5-VL.")] = "8m",
) -> None:
    """Compare a trainer's memory with the plan: one rank, two ranks and each switch (a minute)."""
    from dart_lab.train.memory_bench import SIZES, compare

    if model not in SIZES:
        raise typer.BadParameter(f"--model is one of {', '.join(SIZES)}")
    finish(compare(model, progress), json)


@app.command()
def trl(
    json: JsonOption = None,
    repeat: Annotated[int, typer.Option(min=1, help="Steps of each trainer that are measured.")] = 3,
    asynchronous: Annotated[
        bool, typer.Option("--asynchronous", help="TRL's AsyncGRPOTrainer instead: a tiny task, trained by both.")
    ] = False,
    updates: Annotated[int, typer.Option(min=5, help="With --asynchronous: of each trainer.")] = 40,
) -> None:
    """One optimizer step on 64 completions with several images: TRL's GRPOTrainer and ours (a minute or two)."""
    if asynchronous:
        from dart_lab.train.trl_side_by_side import measure as train_both

        finish(train_both(updates, progress), json)
        return
    from dart_lab.train.trl_bench import measure

    finish(measure(repeat, progress), json)


@app.command()
def transfer(
    json: JsonOption = None,
    model: Annotated[str, typer.Option(help="half (half a billion weights, 14 GB of memory) or tiny.")] = "half",
    rounds: Annotated[int, typer.Option(min=1, help="Versions that are published by each way.")] = 3,
    kills: Annotated[bool, typer.Option(help="Also kill an engine and the main rank amid a transfer.")] = True,
) -> None:
    """New weights from two ranks to two engines: by files and from memory, and under kills (minutes)."""
    import asyncio

    from dart_lab.train.transfer_bench import MODELS, Options, measure

    if model not in MODELS:
        raise typer.BadParameter(f"--model is one of {', '.join(MODELS)}")
    finish(asyncio.run(measure(Options(model, rounds, kills), progress)), json)


@app.command()
def data(
    json: JsonOption = None,
    rows: Annotated[int, typer.Option(min=1000, help="Trajectories in the run that is leased from.")] = 1_000_000,
    writers: Annotated[int, typer.Option(min=1, help="Processes that record at once.")] = 8,
    seconds: Annotated[float, typer.Option(min=0.1, help="For which they record.")] = 10.0,
    steps: Annotated[int, typer.Option(min=0, help="Of each recorded trajectory.")] = 15,
    leases: Annotated[int, typer.Option(min=1, help="Leases of 64 trajectories.")] = 200,
    database: Annotated[str | None, typer.Option(help="sqlite or mariadb; both if not given.")] = None,
) -> None:
    """Recording, and leasing from a long run, beside selecting the whole run into pandas (minutes)."""
    from dart_lab.train.data_bench import DATABASES, Sizes, measure

    chosen = DATABASES if database is None else (database,)
    sizes = Sizes(rows=rows, writers=writers, seconds=seconds, steps=steps, leases=leases)
    finish(measure(chosen, sizes, progress), json)
