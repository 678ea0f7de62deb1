"""The command `dart-gym`: serve desktops, list tasks, look at the machine."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from dart_gym.bench.cli import app as bench_app
from dart_gym.cluster.address import parse_address
from dart_gym.cluster.server import ClusterServer, ServerSettings
from dart_gym.desktops.face_address import FacePolicy
from dart_gym.desktops.providers import PROVIDERS, make_provider
from dart_gym.desktops.providers.base import Provider, opened
from dart_gym.desktops.sandbox import clean_leftovers
from dart_gym.errors import ConfigurationError, DartGymError
from dart_gym.processes import exit_status, follow_parent
from dart_gym.tasks.cli import app as tasks_app
from dart_gym.tasks.evaluation.cli import app as evaluator_app

log = logging.getLogger("dart_gym")


class _Group(typer.core.TyperGroup):
    """Shows a user's error as one line instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except DartGymError as error:
            print(f"dart-gym: {error}", file=sys.stderr)
            raise SystemExit(exit_status(hopeless=error.hopeless)) from error


app = typer.Typer(
    name="dart-gym",
    cls=_Group,
    help="Desktops as environments: serve them, list tasks, check the machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(tasks_app, name="tasks")
app.add_typer(bench_app, name="bench")
app.add_typer(evaluator_app, name="evaluator")


@app.command()
def serve(
    listen: Annotated[
        str, typer.Option(help="ws+unix:///path.sock (this machine), or ws://host:port.")
    ] = "ws://127.0.0.1:8765",
    desktops: Annotated[int, typer.Option(help="How many desktops may run at once.")] = 4,
    token_env: Annotated[
        str | None, typer.Option(help="Environment variable with the token that clients must show.")
    ] = None,
    sandbox: Annotated[
        str | None, typer.Option(help="bwrap, or none where there are no user namespaces; by default as tasks say.")
    ] = None,
    grace: Annotated[float, typer.Option(help="Seconds that a session outlives its connection.")] = 30.0,
    idle_timeout: Annotated[float, typer.Option(help="A lease ends after so many seconds without a request.")] = 900.0,
    idle_desktop: Annotated[float, typer.Option(help="A free desktop is stopped after so many seconds.")] = 300.0,
    heartbeat: Annotated[float, typer.Option(help="Seconds between websocket pings.")] = 20.0,
    osworld_url: Annotated[
        list[str] | None, typer.Option(help="A machine with OSWorld's server that clients may use. May be repeated.")
    ] = None,
    osworld_face: Annotated[
        Path | None,
        typer.Option(
            help="Give each desktop OSWorld's HTTP face on a Unix socket in this directory (see reset's info)."
        ),
    ] = None,
    osworld_face_tcp: Annotated[
        bool, typer.Option("--osworld-face-tcp", help="The same on a loopback port, with a token for each desktop.")
    ] = False,
    osworld_face_open: Annotated[
        bool,
        typer.Option(
            "--osworld-face-open", help="The same without a token, for stock clients: any local user can use it."
        ),
    ] = False,
    provider: Annotated[str, typer.Option(help="Who makes the desktops: " + ", ".join(PROVIDERS) + ".")] = "xvfb",
    provider_option: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE, an option of the provider. May be repeated.")
    ] = None,
    die_with_parent: Annotated[bool, typer.Option("--die-with-parent", help="End when the parent does.")] = False,
    parent: Annotated[
        int | None, typer.Option(help="With --die-with-parent: its pid, to notice that it is dead already.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="At the end remove the socket's directory.")] = False,
) -> None:
    """Serve desktops until a signal ends it. SIGTERM and Ctrl-C stop all of them."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for chatty in ("websockets", "httpx"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    if die_with_parent:
        follow_parent(parent)
    settings = ServerSettings(
        listen=listen,
        desktops=desktops,
        token=_token(token_env),
        sandbox=sandbox,
        grace_s=grace,
        idle_timeout_s=idle_timeout,
        idle_desktop_s=idle_desktop,
        heartbeat_s=heartbeat,
        faces=_faces(osworld_face, osworld_face_tcp, osworld_face_open),
        osworld_urls=("*",) if private else tuple(osworld_url or ()),
    )
    maker = make_provider(provider, provider_option or ())
    for path in clean_leftovers():
        log.info("removed %s, left behind by a process that is dead", path)
    try:
        asyncio.run(_serve(settings, maker))
    finally:
        if private and parse_address(listen).is_unix:
            shutil.rmtree(Path(parse_address(listen).path).parent, ignore_errors=True)


def _faces(directory: Path | None, tcp: bool, open_to_all: bool) -> FacePolicy | None:
    chosen = (directory is not None) + tcp + open_to_all
    if chosen > 1:
        raise ConfigurationError("choose one of --osworld-face, --osworld-face-tcp and --osworld-face-open")
    return FacePolicy(directory, open_to_all) if chosen else None


def _token(variable: str | None) -> str | None:
    if variable is None:
        return None
    token = os.environ.get(variable, "")
    if not token:
        raise ConfigurationError(f"the environment variable {variable} named by --token-env is not set: export a token")
    return token


async def _serve(settings: ServerSettings, provider: Provider) -> None:
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, ending.set)
    if provider.capacity is not None and settings.desktops > provider.capacity:
        log.info("the provider %s has %d desktops: serving as many", provider.name, provider.capacity)
        settings = dataclasses.replace(settings, desktops=provider.capacity)
    async with opened(provider), ClusterServer(settings, provider.desktop) as server:
        print(f"listening on {server.url}", flush=True)  # who started it waits for this line
        await ending.wait()
        log.info("stopping")


@app.command()
def status(
    url: Annotated[str, typer.Argument(help="Of the cluster.")] = "ws://127.0.0.1:8765",
    token_env: Annotated[str | None, typer.Option(help="Environment variable with the token.")] = None,
) -> None:
    """Show what each desktop of a running cluster does."""
    from dart_gym.cluster.client import ClientSettings, ClusterClient

    client = ClusterClient(url, _token(token_env), ClientSettings(reconnect_s=0.0))
    found = asyncio.run(client.status())
    for desktop in found["desktops"]:
        busy = sum(desktop["busy_s"].values())
        print(
            f"{desktop['slot']:>3}  {desktop['phase']:<8} {desktop['episodes']:>6} episodes  {busy:8.1f} s busy  "
            f"{desktop['spec']:<28} {desktop['task']}"
        )
    print(f"{found['sessions']} sessions, {found['waiting']} waiting, up {found['uptime_s']:.0f} s")


@app.command()
def doctor(
    task_set: Annotated[
        Path | None, typer.Option("--task-set", help="Directory of OSWorld task files: which wait for which package.")
    ] = None,
) -> None:
    """Look at the machine and say what is missing."""
    from dart_gym.doctor import main as examine

    raise typer.Exit(examine(task_set=task_set))


if __name__ == "__main__":
    app()
