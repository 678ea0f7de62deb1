"""OSWorld's own PythonController and SetupController drive a real desktop through its OSWorld API."""

from __future__ import annotations

import http.server
import threading

import pytest

from dart_gym.desktops.osworld_api.api_server import OSWorldAPI
from tests.dart_gym.stock_osworld import stock_calls
from tests.dart_gym.waiting import wait_for

pytestmark = pytest.mark.desktop

PNG = [137, 80, 78, 71, 13, 10, 26, 10]


@pytest.fixture
async def machine(start_desktop):
    return await start_desktop(profile="osworld", width=1920, height=1080)


@pytest.fixture
def page(tmp_path):
    """A local web server with one file; gives its URL."""
    (tmp_path / "report.txt").write_text("from the hub")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(tmp_path))

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/report.txt"
    server.shutdown()
    server.server_close()


@pytest.mark.thorough
async def test_the_python_controller_sees_and_acts(machine):
    await machine.write_file("/home/user/Documents/a.txt", b"content")
    move = "pyautogui.moveTo(300, 200); print(tuple(pyautogui.position()))"
    calls = [
        ("python", "get_screenshot", {}),
        ("python", "execute_python_command", {"command": move}),
        ("python", "get_file", {"file_path": "~/Documents/a.txt"}),
        ("python", "get_file", {"file_path": "/home/user/nothing"}),
        ("python", "get_terminal_output", {}),
        ("python", "get_vm_platform", {}),
        ("python", "get_vm_screen_size", {}),
        ("python", "get_vm_desktop_path", {}),
        ("python", "get_vm_directory_tree", {"path": "/home/user/Documents"}),
        ("python", "execute_action", {"action": {"action_type": "CLICK", "x": 50, "y": 60}}),
        ("python", "execute_python_command", {"command": "print(tuple(pyautogui.position()))"}),
        ("python", "run_bash_script", {"script": "echo one; echo two >&2; exit 3"}),
        ("python", "run_python_script", {"script": "print(6 * 7)"}),
        ("python", "get_vm_wallpaper", {}),
    ]
    async with OSWorldAPI(machine, open_to_all=True) as api:
        got = await stock_calls(calls, api.address)
    (
        screenshot,
        moved,
        content,
        missing,
        terminal,
        platform,
        size,
        desktop,
        tree,
        _,
        clicked,
        bash,
        python,
        wallpaper,
    ) = got
    assert screenshot["head"] == PNG
    assert (moved["output"], moved["returncode"], moved["error"]) == ("(300, 200)\n", 0, "")
    assert content == {"bytes": 7, "head": list(b"content")}
    assert missing is None and terminal is None
    assert platform == "Linux"
    assert size == {"width": 1920, "height": 1080}
    assert desktop == "/home/user/Desktop"
    assert tree == {"type": "directory", "name": "Documents", "children": [{"type": "file", "name": "a.txt"}]}
    assert clicked["output"] == "(50, 60)\n"
    assert (bash["status"], bash["output"], bash["returncode"]) == ("error", "one\ntwo\n", 3)
    assert (python["status"], python["output"]) == ("success", "42\n")
    assert wallpaper["head"] == PNG  # nobody has set one: what the screen shows


@pytest.mark.thorough
async def test_the_setup_controller_prepares(machine, page):
    # Where mousepad is the editor of text files, it has one window, named after the file that came last: while `open`
    # waits for its own, no other may come.
    launch = {"command": "mousepad ~/Documents/report.txt", "shell": True}
    steps = [
        {"type": "download", "parameters": {"files": [{"url": page, "path": "/home/user/Documents/report.txt"}]}},
        {"type": "execute", "parameters": {"command": ["cp", "~/Documents/report.txt", "~/copy.txt"]}},
        {"type": "command", "parameters": {"command": "echo {SCREEN_WIDTH} > /home/user/width", "shell": True}},
        {"type": "open", "parameters": {"path": "/home/user/copy.txt"}},
        {"type": "launch", "parameters": launch},
        {"type": "sleep", "parameters": {"seconds": 0.1}},
    ]
    with_window = [
        ("setup", "setup", {"config": [{"type": "activate_window", "parameters": {"window_name": "report.txt"}}]}),
        ("python", "get_vm_window_size", {"app_class_name": "mousepad"}),
        ("setup", "setup", {"config": [{"type": "close_window", "parameters": {"window_name": "copy.txt"}}]}),
    ]

    async def report_is_open() -> bool:
        return b"report.txt" in (await machine.execute(["wmctrl", "-l"])).stdout

    async with OSWorldAPI(machine, open_to_all=True) as api:
        (prepared,) = await stock_calls([("setup", "setup", {"config": steps})], api.address)
        await wait_for(report_is_open)  # `launch` does not wait for a window
        activated, window, closed = await stock_calls(with_window, api.address)
    assert prepared is True and activated is True and closed is True
    assert window["width"] > 100 and window["height"] > 100
    assert await machine.read_file("/home/user/copy.txt") == b"from the hub"
    assert await machine.read_file("/home/user/width") == b"1920\n"
