"""The command `dart-gym`."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.server.access_tokens import Principal, read_tokens
from dart_gym.cluster.server.server_settings import DesktopSettings, ServerSettings
from dart_gym.commands.gym_cli import app
from dart_gym.commands.section_options import takes
from dart_gym.core.errors import ConfigurationError

pytestmark = pytest.mark.process

runner = CliRunner()


def test_tasks_lists_a_suite():
    result = runner.invoke(app, ["tasks", "list", "fake"])
    assert result.exit_code == 0 and result.output.split() == ["fake/click-button", "fake/two-steps"]


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["tasks", "list", "fak"], "did you mean 'fake'"),
        (["serve", "--listen", "ws://0.0.0.0:1"], "--token-env"),
        (["serve", "--listen", "http://x"], "ws+unix:///"),
        (["serve", "--token-env", "DART_GYM_NO_SUCH"], "DART_GYM_NO_SUCH"),
        (["serve", "--isolation", "jail"], "bwrap"),
        (["serve", "--listen", "wss://127.0.0.1:1"], "--tls-cert"),
        (["serve", "--tokens", "/nowhere.yaml"], "cannot read the tokens file /nowhere.yaml"),
        (["token", "two words"], "there can be no such token: name"),
        (["status", "--url", "ws+unix:///nowhere.sock"], "dart-gym serve"),
    ],
)
def test_a_users_mistake_is_one_line(arguments, match):
    result = subprocess.run(
        [sys.executable, "-m", "dart_gym.commands.gym_cli", *arguments], capture_output=True, text=True
    )
    assert result.returncode != 0 and match in result.stderr and "Traceback" not in result.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
async def test_serve_ends_on_a_signal_and_removes_its_socket(tmp_path, signum):
    path = tmp_path / "s"
    command = [
        sys.executable,
        "-m",
        "dart_gym.commands.gym_cli",
        "serve",
        "--listen",
        f"ws+unix://{path}",
        "--drain",
        "0",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == f"listening on ws+unix://{path}\n"
        async with ClusterClient(f"ws+unix://{path}").session() as session:
            await session.reset("fake/click-button", seed=0)
            shown = subprocess.run(
                [sys.executable, "-m", "dart_gym.commands.gym_cli", "status", "--url", f"ws+unix://{path}"],
                capture_output=True,
                text=True,
            )
            assert "fake/click-button" in shown.stdout and "2 sessions" in shown.stdout
            server.send_signal(signum)
            assert server.wait(10) == 0
    assert not path.exists()


@pytest.mark.process
@pytest.mark.parametrize("program", ["dart_gym.commands.gym_cli", "dart_agent.commands.agent_cli"])
def test_a_program_starts_without_what_only_downloads_and_pages_need(program):
    """It takes a process half a second to import, and every private cluster is one more."""
    code = f"import sys; import {program}; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_a_token_is_shown_once_beside_its_line_for_the_file(tmp_path):
    result = runner.invoke(app, ["token", "alice", "--desktops", "3", "--sessions", "5"])
    token, line = result.stdout.strip(), result.stderr.splitlines()[-1]
    path = tmp_path / "tokens.yaml"
    path.write_text("tokens:\n" + line)
    assert read_tokens(path).find(token) == Principal("alice", 3, 5) and token not in line


def test_settings_come_from_a_file_and_options_go_first(tmp_path):
    seen = []

    @takes(ServerSettings, of_run="cluster", run_fields=DesktopSettings.model_fields)
    def command(settings: ServerSettings, other: int = 3) -> None:
        seen.append((settings, other))

    app = typer.Typer()
    app.command()(command)

    def given(*arguments: str) -> ServerSettings:
        result = runner.invoke(app, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return seen[-1][0]

    assert given() == ServerSettings()
    chosen = given("--drain", "2", "--provider-option", "boot-timeout-s=9", "--osworld-url", "a", "--osworld-url", "b")
    assert (chosen.drain_s, chosen.provider_options, chosen.osworld_urls) == (2, {"boot_timeout_s": "9"}, ("a", "b"))
    own, run = tmp_path / "own.yaml", tmp_path / "run.yaml"
    own.write_text("desktops: 7\nlisten: ws+unix:///s\n")
    run.write_text("rollout: {tasks: [a]}\ncluster: {desktops: 8, url: null, token_env: NAME, warm: 0}\n")
    assert given("--config", str(own)) == ServerSettings(desktops=7, listen="ws+unix:///s")
    assert given("--config", str(run), "--desktops", "9") == ServerSettings(desktops=9, warm=0)
    own.write_text("desktop: 7")
    with pytest.raises(ConfigurationError, match="desktop: unknown key; did you mean 'desktops'"):
        given("--config", str(own))
    for removed in ("idle_desktop_s: 5", "rollout: {tasks: [a]}\ncluster: {idle_desktop_s: 5}"):
        own.write_text(removed)
        with pytest.raises(ConfigurationError, match="idle_desktop_s: this key was removed: it is always 300.0"):
            given("--config", str(own))
    with pytest.raises(ConfigurationError, match="desktops: input should be greater than or equal to 1"):
        given("--desktops", "0")
    for wrong in (["network"], ["=host"]):
        with pytest.raises(ConfigurationError, match="KEY=VALUE"):
            given("--provider-option", *wrong)
    with pytest.raises(ConfigurationError, match="given twice"):
        given("--provider-option", "memory=1GiB", "--provider-option", "memory=2GiB")
    with pytest.raises(ConfigurationError, match="cannot read"):
        given("--config", str(tmp_path / "none.yaml"))
