"""docs/tutorials/own_model.md against servers: its commands run as they stand and print, or fail, as it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers.chat_server import ChatServer, chat_server, make_certificates
from tests.helpers.parameters import slow_but

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorials" / "own_model.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+)\n((?:(?!^## ).*\n)*)", PAGE, re.MULTILINE))
ROWS = dict(re.findall(r"^\| ([^|`]+) \| `(.+)` \|$", SECTIONS["What failures look like"], re.MULTILINE))
COMMANDS = "".join(
    f'{program}() {{ "{sys.executable}" -m {module} "$@"; }}\n'
    for program, module in (("dart-agent", "dart_agent.commands.agent_cli"), ("dart-gym", "dart_gym.commands.gym_cli"))
)
EVAL = "dart-agent eval fake/click-button --n 2 --policy chat --format computer_13 --model my-model --engine-url "
TOKEN = "0123456789abcdef0123456789abcdef"
FAILURES = {
    "no server there": ("", EVAL + "http://127.0.0.1:9/v1"),
    "no key": ("", "unset OPENAI_API_KEY; " + EVAL + "https://api.example.org/v1"),
    "wrong key": ("401", EVAL + "http://127.0.0.1:8000/v1"),
    "unknown model": ("404", EVAL + "http://127.0.0.1:8000/v1"),
    "address without `/v1`": ("", EVAL + "http://127.0.0.1:8000"),
    "another kind of server": ("html", EVAL + "http://127.0.0.1:8000/v1"),
    "it answers nothing": ("hang", EVAL + "http://127.0.0.1:8000/v1 --timeout 1"),
    "a private CA, not named": ("", "unset SSL_CERT_FILE; " + EVAL + "https://localhost:8443/v1"),
    "a name that is not in the certificate": ("", EVAL + "https://127.0.0.1:8443/v1"),
    "no TLS where `https` was asked": ("", EVAL + "https://localhost:8000/v1"),
}
"""By row of the page, how the server answers, and the command."""

QUICK = ("A hosted model", "A Python function", "TLS")
QUICK_FAILURES = ("no key", "another kind of server", "a private CA, not named")

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]  # torch and transformers are slow to import


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> tuple[Path, Path, Path]:
    return make_certificates(tmp_path_factory.mktemp("tls"), "DNS:localhost")


@pytest.fixture(scope="module")
def server(certificates) -> Iterator[ChatServer]:
    _, certificate, key = certificates
    with chat_server(certificate, key) as served:
        yield served


def placed(text: str, server: ChatServer) -> str:
    """Text of the page with the ports of this server."""
    return text.replace(":8000", f":{server.port}").replace(":8443", f":{server.tls_port}")


def shell(script: str, folder: Path, ca: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", "OPENAI_API_KEY": "sk-test", **more}
    environment["SSL_CERT_FILE"] = str(ca)
    command = ["bash", "-euc", COMMANDS + script]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=350)


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.thorough
@pytest.mark.parametrize(
    "section",
    [
        pytest.param(
            name, marks=[pytest.mark.slow] * (name not in QUICK) + [pytest.mark.train] * ("this process" in name)
        )
        for name, text in SECTIONS.items()
        if "```bash" in text
    ],
)
def test_the_commands_of_a_section_print_what_it_shows(section: str, server, certificates, tmp_path):
    server.mode, ca = "", certificates[0]
    (tmp_path / "page").mkdir()
    (tmp_path / "ca.crt").write_bytes(ca.read_bytes())
    blocks = re.findall(r"^```(bash|text)\n(.*?)^```$", SECTIONS[section], re.MULTILINE | re.DOTALL)
    script = "".join(text for language, text in blocks if language == "bash")
    done = shell(placed(script, server), tmp_path / "page", ca)
    assert done.returncode == 0, done.stderr
    for line in (line for language, text in blocks if language == "text" for line in text.splitlines()):
        assert words(line) in words(done.stdout), done.stdout
    assert "Bearer sk-test" in server.keys or section not in ("A hosted model", "TLS")


def test_every_failure_of_the_table_is_tried():
    assert ROWS.keys() | {"address without `/v1`", "no TLS where `https` was asked"} == {
        *FAILURES,
        "a cluster with a private CA",
    }


@pytest.mark.thorough
@pytest.mark.parametrize("row", slow_but(QUICK_FAILURES, FAILURES))
def test_a_failure_looks_as_the_page_says(row: str, server, certificates, tmp_path):
    server.mode, command = FAILURES[row]
    (message,) = re.findall(rf"^\| {re.escape(row)} \| `(.+)` \|$", PAGE, re.MULTILINE)
    failed = shell(placed(command, server), tmp_path, certificates[0])
    assert failed.returncode == 1
    assert words(placed(message, server)) in words(failed.stderr.splitlines()[-1])
    assert "Traceback" not in failed.stderr


@contextmanager
def desktops(certificate: Path, key: Path, folder: Path) -> Iterator[str]:
    """Our own server with TLS, as a process; yields its address."""
    command = [sys.executable, "-m", "dart_gym.commands.gym_cli", "serve", "--listen", "wss://localhost:0"]
    command += ["--tls-cert", str(certificate), "--tls-key", str(key), "--token-env", "DART_GYM_TOKEN", "--warm", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DART_GYM_TOKEN": TOKEN}
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            yield process.stdout.readline().removeprefix("listening on ").strip().replace("127.0.0.1", "localhost")
        finally:
            process.terminate()


def test_our_own_server_is_trusted_by_its_ca_alone(certificates, tmp_path):
    ca, certificate, key = certificates
    with desktops(certificate, key, tmp_path) as url:
        play = f"dart-agent eval fake/click-button --policy oracle --n 2 --url {url} --token-env DART_GYM_TOKEN"
        played = shell(play, tmp_path, ca, DART_GYM_TOKEN=TOKEN)
        assert played.returncode == 0 and "2 done" in played.stdout, played.stderr
        status = f"unset SSL_CERT_FILE; dart-gym status --url {url} --token-env DART_GYM_TOKEN"
        refused = shell(status, tmp_path, ca, DART_GYM_TOKEN=TOKEN)
        message = ROWS["a cluster with a private CA"].replace("wss://localhost:8765", url)
        assert refused.returncode == 1 and words(message) in words(refused.stderr)
