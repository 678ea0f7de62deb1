"""The command `dart-gym`: serve desktops, list tasks, look at the machine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from dart_gym.cluster.server.cluster_server import ClusterServer
from dart_gym.cluster.server.orphans import clean_up
from dart_gym.cluster.server.server_settings import DesktopSettings, ServerSettings, token_of
from dart_gym.cluster.wire.cluster_address import parse_address
from dart_gym.commands.added_commands import mount_added
from dart_gym.commands.certify_command import certify
from dart_gym.commands.evaluator_commands import app as evaluator_app
from dart_gym.commands.gym_init import init
from dart_gym.commands.json_output import JsonOption, write_json
from dart_gym.commands.program import Program, add_common_options, guarded
from dart_gym.commands.section_options import takes
from dart_gym.commands.task_commands import app as tasks_app
from dart_gym.core.errors import ClusterError, ConfigurationError, MissingDependencyError
from dart_gym.desktops.osworld_api.api_address import APIPolicy
from dart_gym.desktops.sandbox.sandbox_check import missing_programs
from dart_gym.providers.provider import Provider, opened
from dart_gym.providers.provider_registry import docker_here, make_provider
from dart_gym.tasks.catalog.registry import SUITES
from dart_gym.utils.loop_watchdog import watched
from dart_gym.utils.processes import follow_parent

log = logging.getLogger("dart_gym")


class _Group(Program):
    """Shows an error as one line instead of a traceback."""

    def main(self, *args: Any, **extra: Any) -> Any:
        guarded("dart-gym", lambda: super(_Group, self).main(*args, **extra))


app = typer.Typer(
    name="dart-gym",
    cls=_Group,
    help="Desktops as environments: serve them, list tasks, check the machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
add_common_options(app, "dart-gym")
app.add_typer(tasks_app, name="tasks")
app.command()(certify)
app.command()(init)
app.add_typer(evaluator_app, name="evaluator")


@app.command()
@takes(ServerSettings, of_run="cluster", run_fields=DesktopSettings.model_fields, leave_out=["osworld_api"])
def serve(
    settings: ServerSettings,
    osworld_api: Annotated[
        Path | None,
        typer.Option(help="Give each desktop the OSWorld API on a Unix socket in this directory (see reset's info)."),
    ] = None,
    osworld_api_tcp: Annotated[
        bool, typer.Option("--osworld-api-tcp", help="The same on a loopback port, with a token for each desktop.")
    ] = False,
    osworld_api_open: Annotated[
        bool,
        typer.Option(
            "--osworld-api-open", help="The same without a token, for stock clients: any local user can use it."
        ),
    ] = False,
    die_with_parent: Annotated[bool, typer.Option("--die-with-parent", help="End when the parent does.")] = False,
    parent: Annotated[
        int | None, typer.Option(help="With --die-with-parent: its pid, to notice that it is dead already.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="At the end remove the socket's directory.")] = False,
) -> None:
    """Serve desktops until a signal ends it: SIGTERM lets episodes end, a second one and Ctrl-C do not wait.

    SIGHUP reads the tokens and the certificate again.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for chatty in ("websockets", "httpx"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    if die_with_parent:
        follow_parent(parent)
    for name in settings.suites:
        if name != "*":
            SUITES.get(name)
    maker = make_provider(settings.provider, settings.provider_options)
    if private and missing_programs():
        maker = asyncio.run(docker_here()) or maker  # an environment's user chose neither
    settings = settings.model_copy(
        update={
            "desktops": _desktops(settings.desktops, maker),
            "warm": maker.warm if settings.warm is None else settings.warm,
            "osworld_api": _api_policy(osworld_api, osworld_api_tcp, osworld_api_open) or settings.osworld_api,
            **({"osworld_urls": ("*",), "suites": ("*",)} if private else {}),
        }
    )
    sockets = settings.osworld_api and settings.osworld_api.directory
    for found in clean_up([sockets] if sockets else []):
        log.info("removed %s, left behind by a process that is dead", found)
    try:
        asyncio.run(_serve(settings, maker, patient=not private))
    finally:
        if private and parse_address(settings.listen).is_unix:
            shutil.rmtree(Path(parse_address(settings.listen).path).parent, ignore_errors=True)


def _desktops(asked: int, provider: Provider) -> int:
    if provider.capacity is None or asked <= provider.capacity:
        return asked
    log.info("the provider %s has %d desktops: serving as many", provider.name, provider.capacity)
    return provider.capacity


def _api_policy(directory: Path | None, tcp: bool, open_to_all: bool) -> APIPolicy | None:
    chosen = (directory is not None) + tcp + open_to_all
    if chosen > 1:
        raise ConfigurationError("choose one of --osworld-api, --osworld-api-tcp and --osworld-api-open")
    return APIPolicy(directory, open_to_all) if chosen else None


async def _serve(settings: ServerSettings, provider: Provider, patient: bool) -> None:
    """Serve until a signal; `patient`: after the first SIGTERM episodes may continue for `drain_s`."""
    ending, at_once = asyncio.Event(), asyncio.Event()

    def interrupt() -> None:
        ending.set()
        at_once.set()

    def terminate() -> None:
        if ending.is_set() or not patient:
            at_once.set()
        ending.set()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, interrupt)
    # Not the loop's: a handler that a loop gives up leaves the default for a moment, which would end this process.
    signal.signal(signal.SIGTERM, lambda *_: loop.call_soon_threadsafe(terminate))
    async with contextlib.AsyncExitStack() as stack:
        # The kernel signals again for each thread of a parent that is killed. None of these signals may end this
        # process in its last moment, whichever of its threads gets it.
        stack.callback(signal.signal, signal.SIGTERM, signal.SIG_IGN)
        stack.enter_context(watched(loop))
        await stack.enter_async_context(opened(provider))
        server = ClusterServer(settings, provider.desktop, local=provider.local)
        await stack.enter_async_context(server)
        if settings.tokens or settings.tls_cert:  # else a lost terminal ends it, as it does others
            loop.add_signal_handler(signal.SIGHUP, server.reload)
        print(f"listening on {server.url}", flush=True)  # the process that started it waits for this line
        await ending.wait()
        if not at_once.is_set():
            log.info("draining: no more desktops are lent, episodes may go on for %g s", settings.drain_s)
            waiting = [asyncio.create_task(server.drain()), asyncio.create_task(at_once.wait())]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()
        log.info("stopping")


@app.command()
def token(
    name: Annotated[str, typer.Argument(help="Who it is for.")],
    desktops: Annotated[int | None, typer.Option(help="How many desktops its sessions may hold together.")] = None,
    sessions: Annotated[int | None, typer.Option(help="How many sessions it may have open.")] = None,
) -> None:
    """Make a token: it is shown once, with the line for the file of `serve --tokens`."""
    from dart_gym.cluster.server.access_tokens import new_token, token_line

    made = new_token()
    line = token_line(name, made, desktops, sessions)
    print(made)
    print(f"give it to {name}; the tokens file gets the line", file=sys.stderr)
    print(line, file=sys.stderr)


@app.command()
def status(
    url: Annotated[str, typer.Option(help="Address of the cluster.")] = "ws://127.0.0.1:8765",
    token_env: Annotated[str | None, typer.Option(help="Environment variable with the token.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for an answer.")] = 15.0,
    json_file: JsonOption = None,
) -> None:
    """Show what each desktop of a running cluster does."""
    from dart_gym.cluster.client.cluster_client import ClusterClient
    from dart_gym.cluster.client.cluster_servers import ClientSettings

    client = ClusterClient(url, token_of(token_env), ClientSettings(reconnect_s=0.0))

    async def ask() -> dict[str, Any]:
        async with asyncio.timeout(timeout):
            return await client.status()

    try:
        found = asyncio.run(ask())
    except TimeoutError:
        raise ClusterError(f"{url} did not answer within {timeout:g} s (--timeout): is it a cluster?") from None
    write_json(json_file, found)
    for desktop in found["desktops"]:
        busy = sum(desktop["busy_s"].values())
        print(
            f"{desktop['slot']:>3}  {desktop['phase']:<8} {desktop['episodes']:>6} episodes  {busy:8.1f} s busy  "
            f"{desktop['spec']:<28} {desktop['task']}"
        )
    for limits in {tuple(desktop["limits"].items()) for desktop in found["desktops"] if desktop["limits"]}:
        print("each may use " + ", ".join(f"{name} {amount:g}" for name, amount in limits))
    for one in found["warm"]:
        print(f"  +  {'ready' if one['ready'] else 'boots':<8} {one['spec']}")
    print(f"{found['sessions']} sessions, {found['waiting']} waiting, up {found['uptime_s']:.0f} s")
    if found["waiting_because"]:
        print(f"{found['waiting_to_boot']} wait to boot: {found['waiting_because']}")


@app.command()
def mcp(
    url: Annotated[str | None, typer.Option(help="Address of a cluster; without one a private one is started.")] = None,
    token_env: Annotated[str | None, typer.Option(help="Environment variable with the cluster's token.")] = None,
    task: Annotated[str | None, typer.Option(help="Task of episodes for which the client names none.")] = None,
    offer: Annotated[str, typer.Option(help="What clients may use, of actions,screenshot,tree,setup,score.")] = "",
    http: Annotated[str | None, typer.Option(help="Serve streamable HTTP at HOST:PORT, instead of stdio.")] = None,
    tokens: Annotated[Path | None, typer.Option(help="With --http: who may come, a file as of `serve`.")] = None,
    open_: Annotated[bool, typer.Option("--open", help="With --http on loopback: ask for no token.")] = False,
    idle: Annotated[float, typer.Option(help="With --http: seconds after which a session without requests ends.")] = 60,
) -> None:
    """Let an MCP client use desktops, one for each of its sessions. Over stdio, or streamable HTTP."""
    try:
        from dart_gym.commands.mcp_server import serve_mcp
    except ImportError as error:
        raise MissingDependencyError("MCP needs its SDK; next step: pip install 'dart-gui[mcp]'") from error
    asyncio.run(serve_mcp(url, token_env, task, offer, http, tokens, open_, idle))


@app.command()
def doctor(
    task_set: Annotated[
        Path | None, typer.Option("--task-set", help="Directory of OSWorld task files: which wait for which package.")
    ] = None,
    parts: Annotated[
        list[str] | None,
        typer.Option("--for", help="What must be there, once for each: desktops, train, osworld, vllm."),
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Look at the machine and say what is missing; exit status 1 where something that is requested is.

    Desktops are always requested; other parts are once something of them is installed, or --for names them.
    """
    from dart_gym.commands.doctor import main as examine

    raise typer.Exit(examine(task_set=task_set, asked=parts or (), json_file=json_file))


mount_added(app, "gym")


def main() -> None:
    """Run the command; an error is one line, not a traceback."""
    app()


if __name__ == "__main__":
    main()
