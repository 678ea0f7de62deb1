"""`dart-train engines`: the environment that vLLM lives in."""

from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="The environment that vLLM lives in.")


@app.callback()
def _group() -> None:
    """Keep `install` a command of its own name."""


@app.command()
def install(
    timeout: Annotated[
        float | None, typer.Option(min=0.1, help="seconds for one answer of the package index; pip's own if not given")
    ] = None,
) -> None:
    """Install vLLM into an environment of its own (DART_VLLM names where), for runs with rollout.engine.kind: vllm."""
    from dart_agent.engines.vllm import vllm_environment

    print(f"vLLM {vllm_environment.VERSION} is in {vllm_environment.install(timeout_s=timeout)}")
