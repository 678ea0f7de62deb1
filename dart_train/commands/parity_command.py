"""`dart-train parity`: check before a run whether engine and trainer agree on a model."""

import asyncio
import json as json_format
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from dart_agent.engines.base.engine import EngineTimeout
from dart_gym.commands.json_output import JsonOption, write_json
from dart_gym.utils.waits import waiting_for
from dart_train.core.train_errors import TrainingError


def parity(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="directory of the model")],
    engine: Annotated[
        str, typer.Option(help="transformers (ours, here), vllm (a server is started), or a server's URL")
    ] = "transformers",
    engine_options: Annotated[
        str | None, typer.Option(metavar="JSON", help="options of an engine that is started, as rollout.engine.options")
    ] = None,
    engine_dtype: Annotated[
        str | None, typer.Option(help="precision of the engine: float32 (ours) or bfloat16 (servers) if not given")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    screen: Annotated[str, typer.Option(metavar="WxH", help="size of the screenshots")] = "1280x720",
    steps: Annotated[int, typer.Option(min=2, help="of each of the two rollouts")] = 5,
    temperature: Annotated[float, typer.Option(min=0.01, help="that the engine samples at")] = 1.0,
    timeout: Annotated[float, typer.Option(min=0.1, help="seconds for one response of the engine")] = 120.0,
    json_file: JsonOption = None,
) -> None:
    """Compare log-probabilities of one conversation: the model's own forward pass, the trainer's ways, the engine."""
    from dart_agent.models.families.family_table import family_in

    family_in(model)
    if "://" in engine:
        _ask_first(engine, model, timeout)
    with waiting_for("torch and transformers to load"):
        from dart_train.parity import check_model
        from dart_train.parity.gap_table import gap_table
        from dart_train.parity.recorded_conversation import Shape

    with waiting_for(f"the log-probabilities of {model}, which are computed in every way"):
        compared = check_model.compare(
            model,
            engine=engine,
            engine_options=_options(engine_options),
            device=device,
            engine_dtype=engine_dtype,
            timeout_s=timeout,
            shape=Shape(screen=_size(screen), steps=steps, temperature=temperature),
        )
    Console().print(gap_table(compared.gaps, check_model.spelling(compared, model)))
    write_json(json_file, compared.keys)
    bad = [item.pair for item in compared.gaps if not item.agrees]
    if bad:
        raise TrainingError(
            f"{model}: {', '.join(bad)} are further apart than rounding explains: what is trained would not be what "
            "was sampled; is the engine serving this very model, its processor files and settings included?"
        )


def _ask_first(engine: str, model: Path, timeout_s: float) -> None:
    """Check that a server answers before a model is loaded, which may take minutes.

    Raises:
        EngineError: if the server does not answer, or serves something else.
    """
    from dart_agent.engines.engine_kinds import connect_engine

    async def ask() -> None:
        client = connect_engine(engine, model, request_timeout_s=timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                await client.info()
        except TimeoutError:
            raise EngineTimeout(f"{engine} did not answer within {timeout_s:g} s (--timeout): is it running?") from None
        finally:
            await client.close()

    asyncio.run(ask())


def _options(text: str | None) -> dict[str, Any] | None:
    try:
        found = json_format.loads(text) if text else None
    except ValueError as error:
        raise typer.BadParameter(f"--engine-options is not JSON: {error}") from None
    if found is not None and not isinstance(found, dict):
        raise typer.BadParameter("--engine-options is not a JSON object")
    return found


def _size(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    if not (width.isdigit() and height.isdigit()):
        raise typer.BadParameter(f"--screen {text!r} is not WIDTHxHEIGHT, such as 1280x720")
    return int(width), int(height)
