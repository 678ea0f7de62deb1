"""OSWorld's routes on a real desktop: bodies and statuses, deadlines, and no way to them from inside."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from dart_gym.desktops.osworld_api import api_routes
from dart_gym.desktops.osworld_api.api_server import OSWorldAPI

pytestmark = pytest.mark.desktop


@pytest.fixture
async def machine(start_desktop):
    return await start_desktop()


@pytest.fixture
async def client(machine):
    async with OSWorldAPI(machine, open_to_all=True) as api:
        async with httpx.AsyncClient(base_url=api.address.url, timeout=60) as http:
            yield http


async def test_programs(client):
    done = await client.post("/execute", json={"command": "echo out; echo err >&2; exit 3", "shell": True})
    assert done.status_code == 200
    assert done.json() == {"status": "success", "output": "out\n", "error": "err\n", "returncode": 3}
    missing = await client.post("/setup/execute", json={"command": ["no-such-program"]})
    assert missing.status_code == 500 and "No such file" in missing.json()["message"]
    launched = await client.post("/setup/launch", json={"command": ["sleep", "77"]})
    assert launched.text == "sleep 77 launched successfully"
    assert (await client.post("/setup/launch", json={"command": ["no-such-program"]})).status_code == 500


async def test_verification(client):
    request = {"command": ["true"], "verification": {"command_success": "test -e /tmp/mark"}, "max_wait_time": 0.3}
    request["check_interval"] = 0.1
    failed = await client.post("/execute_with_verification", json=request)
    assert failed.status_code == 500 and failed.json()["status"] == "verification_failed"
    passed = await client.post("/execute_with_verification", json={**request, "command": ["touch", "/tmp/mark"]})
    assert passed.status_code == 200 and passed.json()["verification"] == "passed"


async def test_a_late_program_is_killed_and_said_so(client, machine, monkeypatch, until):
    monkeypatch.setattr(api_routes, "EXECUTE_TIMEOUT_S", 0.5)
    late = await client.post("/execute", json={"command": ["sleep", "54321"]})
    assert late.status_code == 500 and "0.5 s" in late.json()["message"]

    async def gone():
        return (await machine.execute(["pgrep", "-f", "sleep 54321"])).returncode == 1

    await until(gone)


async def test_files(client):
    upload = await client.post("/setup/upload", data={"file_path": "~/new/ä.bin"}, files={"file_data": b"\0" * 100_000})
    assert upload.text == "File Uploaded: 100000 bytes"
    got = await client.post("/file", data={"file_path": "$HOME/new/ä.bin"})
    assert got.status_code == 200 and got.content == b"\0" * 100_000
    assert (await client.post("/file", data={"file_path": "/none"})).status_code == 404
    assert (await client.post("/file", data={"file_path": "/home"})).status_code == 404
    await client.post("/execute", json={"command": "ln -s ~/new ~/new/loop", "shell": True})
    tree = (await client.post("/list_directory", json={"path": "/home/user/new"})).json()["directory_tree"]
    assert [entry["name"] for entry in tree["children"]] == ["loop", "ä.bin"]
    assert (await client.post("/list_directory", json={"path": "/none"})).status_code == 400
    download = await client.post("/setup/download_file", json={"url": "http://127.0.0.1:9/x", "path": "~/x"})
    assert download.status_code == 500 and "refused" in download.text


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/execute", b"no json"),
        ("/execute", b"[]"),
        ("/execute", b'{"command": 3}'),
        ("/file", b""),
        ("/setup/upload", b""),
        ("/window_size", b""),
        ("/setup/activate_window", b"{}"),
        ("/setup/open_file", b"{}"),
        ("/run_python", b"{}"),
        ("/end_recording", b""),
    ],
)
async def test_bad_requests_are_refused(client, route, body):
    assert (await client.post(route, content=body)).status_code == 400


async def test_screenshots_may_be_taken_at_once(client):
    answers = await asyncio.gather(*(client.get("/screenshot") for _ in range(5)))
    assert all(
        answer.content.startswith(b"\x89PNG") and answer.content.endswith(b"IEND\xaeB`\x82") for answer in answers
    )


async def test_many_screenshots_leak_no_connection(client):
    for _ in range(300):  # the original dies of this
        assert (await client.get("/screenshot")).status_code == 200


async def test_the_screen_is_recorded(client):
    assert (await client.post("/start_recording")).json()["status"] == "success"
    assert (await client.post("/start_recording")).status_code == 400
    video = await client.post("/end_recording")
    assert video.status_code == 200 and video.content[4:8] == b"ftyp"


async def test_programs_inside_cannot_reach_the_api(machine, tmp_path):
    probe = "import socket,sys; s=socket.socket(); s.settimeout(2); sys.exit(s.connect_ex(('127.0.0.1', {port})) == 0)"
    async with OSWorldAPI(machine, open_to_all=True) as api:
        port = api.address.server_port
        inside = await machine.execute(["/usr/bin/python3", "-c", probe.format(port=port)])
        assert inside.returncode == 0, inside.stderr
        async with httpx.AsyncClient(base_url=api.address.url) as outside:
            assert (await outside.get("/platform")).text == "Linux"
    path = tmp_path / "f.sock"
    async with OSWorldAPI(machine, path=path):
        assert path.stat().st_mode & 0o777 == 0o600
        assert (await machine.execute(["test", "-e", str(path)])).returncode == 1
    assert not path.exists()


async def test_a_stopped_desktop_is_an_error_not_a_hang(machine, client):
    await machine.stop()
    answer = await client.post("/execute", json={"command": ["true"]})
    assert answer.status_code == 500 and "not started" in answer.json()["message"]
