"""The routes of OSWorld's in-VM server (and `/margin`), each a few lines over the `Desktop` protocol.

Where the original misbehaves although its clients cannot want that (scripts that run three times, waits of half an
hour, races between screenshots), these routes do what was meant; bodies and statuses of success are the original's.
"""

import asyncio
import json
import mimetypes
import time
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from aiohttp import web

from dart_gym.core.errors import DesktopError
from dart_gym.desktops.applications.accessibility import terminal_text
from dart_gym.desktops.base.desktop import BACKGROUND, CommandResult, Desktop
from dart_gym.desktops.osworld_api import guest_programs
from dart_gym.desktops.osworld_api.api_commands import (
    BadRequest,
    expand_path,
    find_window,
    program_arguments,
    window_command,
    window_size,
)
from dart_gym.desktops.osworld_api.screen_recorder import Recorder
from dart_gym.utils.png import encode_png

EXECUTE_TIMEOUT_S = 120.0
PYTHON_TIMEOUT_S = 30.0
SCRIPT_TIMEOUT_S = 100.0
OPEN_TIMEOUT_S = 120.0
DOWNLOAD_TIMEOUT_S = 300.0
HELPER_TIMEOUT_S = 30.0
ACCESSIBILITY_TIMEOUT_S = 60.0
_POLL_S = 0.1
_PYTHON = "/usr/bin/python3"


class APIRoutes:
    """Handlers of all routes."""

    def __init__(self, desktop: Desktop) -> None:
        self._desktop = desktop
        self._recorder = Recorder(desktop)
        self._environment: dict[str, str] | None = None

    def table(self) -> list[web.RouteDef]:
        """All routes, by OSWorld's names."""
        return [
            web.post("/execute", self.execute),
            web.post("/setup/execute", self.execute),
            web.post("/execute_with_verification", self.execute_with_verification),
            web.post("/setup/execute_with_verification", self.execute_with_verification),
            web.post("/setup/launch", self.launch),
            web.get("/screenshot", self.screenshot),
            web.get("/margin", self.margin),
            web.get("/terminal", self.terminal),
            web.get("/accessibility", self.accessibility),
            web.post("/screen_size", self.screen_size),
            web.post("/window_size", self.window_size),
            web.post("/desktop_path", self.desktop_path),
            web.post("/wallpaper", self.wallpaper),
            web.post("/list_directory", self.list_directory),
            web.post("/file", self.file),
            web.post("/setup/upload", self.upload),
            web.post("/setup/download_file", self.download_file),
            web.post("/setup/open_file", self.open_file),
            web.post("/setup/activate_window", self.activate_window),
            web.post("/setup/close_window", self.close_window),
            web.post("/setup/change_wallpaper", self.change_wallpaper),
            web.get("/platform", self.platform),
            web.get("/cursor_position", self.cursor_position),
            web.post("/start_recording", self.start_recording),
            web.post("/end_recording", self.end_recording),
            web.post("/run_python", self.run_python),
            web.post("/run_bash_script", self.run_bash_script),
        ]

    # --- programs

    async def execute(self, request: web.Request) -> web.Response:
        """Run a program to its end; its exit status is part of a success."""
        return web.json_response(_finished(await self._run(await _body(request))))

    async def _run(self, data: Mapping[str, Any]) -> CommandResult:
        arguments = program_arguments(data, await self._home())
        result = await self._desktop.execute(arguments, timeout=EXECUTE_TIMEOUT_S)
        if not data.get("shell") and result.missing:
            raise FileNotFoundError(result.stderr.decode(errors="replace"))
        return result

    async def execute_with_verification(self, request: web.Request) -> web.Response:
        """Run a program, then wait until a window exists or a check succeeds."""
        data = await _body(request)
        result = await self._run(data)
        verification = data.get("verification") or {}
        if not verification:
            return web.json_response(_finished(result))
        longest, period = float(data.get("max_wait_time", 10)), float(data.get("check_interval", 1))
        started = time.monotonic()
        while time.monotonic() - started < min(longest, EXECUTE_TIMEOUT_S):
            if await self._verified(verification):
                waited = time.monotonic() - started
                return web.json_response({**_finished(result), "verification": "passed", "wait_time": waited})
            await asyncio.sleep(min(max(period, _POLL_S), 10.0))
        failed = {"status": "verification_failed", "verification": "failed", "wait_time": longest}
        return web.json_response({**_finished(result), **failed}, status=500)

    async def _verified(self, verification: Mapping[str, Any]) -> bool:
        if "window_exists" in verification:
            if str(verification["window_exists"]).lower() not in (await self._windows()).lower():
                return False
        if "command_success" in verification:
            command = ["/bin/sh", "-c", str(verification["command_success"])]
            return (await self._desktop.execute(command, timeout=5.0)).returncode == 0
        return True

    async def launch(self, request: web.Request) -> web.Response:
        """Start a program and leave it running."""
        data = await _body(request)
        arguments = program_arguments(data, await self._home())
        await self._desktop.launch(arguments)
        shown = data["command"] if data.get("shell") else " ".join(arguments)
        return web.Response(text=f"{shown} launched successfully")

    async def run_python(self, request: web.Request) -> web.Response:
        """Run a Python program with the system's Python."""
        code = (await _body(request)).get("code")
        if not isinstance(code, str) or not code:
            raise BadRequest("Code not supplied!")
        result = await self._desktop.execute([_PYTHON, "-"], stdin=code.encode(), timeout=PYTHON_TIMEOUT_S)
        output, error = _text(result.stdout), _text(result.stderr)
        if result.returncode and not error:
            error = f"Process exited with code {result.returncode}"
        return web.json_response(
            {
                "status": "error" if result.returncode else "success",
                "message": "\n".join(part for part in (output, error) if part),
                "need_more": False,
                "output": output,
                "error": error,
                "return_code": result.returncode,
            }
        )

    async def run_bash_script(self, request: web.Request) -> web.Response:
        """Run a script with bash, once; standard error is part of its output."""
        data = await _body(request)
        script = data.get("script")
        if not isinstance(script, str) or not script:
            raise BadRequest("Script not supplied!")
        folder = expand_path(str(data.get("working_dir") or await self._home()), await self._variables())
        command = ["/bin/bash", "-c", 'cd -- "$1" && exec /bin/bash /dev/stdin 2>&1', "bash", folder]
        timeout = min(float(data.get("timeout", SCRIPT_TIMEOUT_S)), 600.0)
        result = await self._desktop.execute(command, stdin=script.encode(), timeout=timeout)
        status = "error" if result.returncode else "success"
        reply = {"status": status, "output": _text(result.stdout), "error": "", "returncode": result.returncode}
        return web.json_response(reply)

    # --- what is seen

    async def screenshot(self, request: web.Request) -> web.Response:
        """The screen as PNG, cursor included."""
        body = await asyncio.to_thread(encode_png, await self._desktop.screenshot())
        return web.Response(body=body, content_type="image/png")

    async def margin(self, request: web.Request) -> web.Response:
        """The rows below the screen, as bytes of RGB. Not one of OSWorld's routes: for desktops in containers."""
        return web.Response(body=(await self._desktop.read_margin()).tobytes())

    async def accessibility(self, request: web.Request) -> web.Response:
        """The accessibility tree."""
        tree = await self._desktop.accessibility_tree(timeout=ACCESSIBILITY_TIMEOUT_S)
        return web.json_response({"AT": tree.xml})

    async def terminal(self, request: web.Request) -> web.Response:
        """The text of the active terminal; null when none is active."""
        return web.json_response({"output": await terminal_text(self._desktop), "status": "success"})

    async def screen_size(self, request: web.Request) -> web.Response:
        """Width and height of the screen."""
        return web.json_response({"width": self._desktop.spec.width, "height": self._desktop.spec.height})

    async def cursor_position(self, request: web.Request) -> web.Response:
        """Where the pointer is."""
        reply = await self._helper(["xdotool", "getmouselocation", "--shell"])
        fields = dict(line.split("=", 1) for line in reply.splitlines() if "=" in line)
        return web.json_response([int(fields["X"]), int(fields["Y"])])

    async def platform(self, request: web.Request) -> web.Response:
        """The kind of machine."""
        return web.Response(text="Linux")

    async def start_recording(self, request: web.Request) -> web.Response:
        """Begin to record the screen."""
        await self._recorder.start()
        return web.json_response({"status": "success", "message": "Started recording successfully."})

    async def end_recording(self, request: web.Request) -> web.Response:
        """Stop recording and send the video."""
        return web.Response(body=await self._recorder.stop(), content_type="video/mp4")

    # --- windows

    async def _windows(self, *options: str) -> str:
        return await self._helper(["wmctrl", "-l", *options])

    async def window_size(self, request: web.Request) -> web.Response:
        """Width and height of a window, by its class."""
        wanted = (await request.post()).get("app_class_name")
        if not isinstance(wanted, str) or not wanted:
            raise BadRequest("app_class_name is required")
        size = window_size(await self._windows("-G", "-x"), wanted)
        if size is None:
            raise FileNotFoundError(f"no window of class {wanted!r}")
        return web.json_response({"width": size[0], "height": size[1]})

    async def activate_window(self, request: web.Request) -> web.Response:
        """Bring a window to the front. As the original, it does not say whether there is one."""
        await self._desktop.execute(window_command(await _body(request), "a"), timeout=HELPER_TIMEOUT_S)
        return web.Response(text="Window activated successfully")

    async def close_window(self, request: web.Request) -> web.Response:
        """Ask a window to close. As the original, it does not say whether there is one."""
        await self._desktop.execute(window_command(await _body(request), "c"), timeout=HELPER_TIMEOUT_S)
        return web.Response(text="Window closed successfully.")

    async def open_file(self, request: web.Request) -> web.Response:
        """Open a file, or start an application, and wait until its window is there."""
        given = _required(await _body(request), "path")
        path = expand_path(given, await self._variables())
        is_file = (await self._desktop.execute(["test", "-e", path], timeout=HELPER_TIMEOUT_S)).returncode == 0
        try:
            await self._desktop.launch(["xdg-open", path] if is_file else [given])
        except FileNotFoundError:
            return web.Response(text=f"Application/file not found: {given}", status=404)
        name = PurePosixPath(path).name if is_file else given
        names = (name, PurePosixPath(name).stem) if is_file else (name,)
        deadline = time.monotonic() + OPEN_TIMEOUT_S
        while time.monotonic() < deadline:
            window = find_window(await self._windows(), names)
            if window is not None:
                await self._desktop.execute(["wmctrl", "-i", "-a", window], timeout=HELPER_TIMEOUT_S)
                return web.Response(text="File opened and window activated successfully")
            await asyncio.sleep(_POLL_S)
        return web.Response(text=f"Failed to find window for {name} within {OPEN_TIMEOUT_S:g} seconds.", status=500)

    # --- files

    async def file(self, request: web.Request) -> web.Response:
        """Content of a file."""
        given = (await request.post()).get("file_path")
        if not isinstance(given, str) or not given:
            raise BadRequest("file_path is required")
        path = expand_path(given, await self._variables())
        try:
            data = await self._desktop.read_file(path)
        except OSError as error:  # no such path, or it is not a file that can be read
            return web.json_response({"error": f"File not found ({error})"}, status=404)
        name = PurePosixPath(path).name
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        return web.Response(body=data, content_type=kind, headers={"Content-Disposition": _attachment(name)})

    async def upload(self, request: web.Request) -> web.Response:
        """Write a file, making its folders."""
        form = await request.post()
        given, part = form.get("file_path"), form.get("file_data")
        if not isinstance(given, str) or not isinstance(part, web.FileField):
            raise BadRequest("file_path and file_data are required")
        data = part.file.read()
        await self._desktop.write_file(expand_path(given, await self._variables()), data)
        return web.Response(text=f"File Uploaded: {len(data)} bytes")

    async def download_file(self, request: web.Request) -> web.Response:
        """Have the desktop itself download a file; one without a network cannot."""
        data = await _body(request)
        url, path = _required(data, "url"), expand_path(_required(data, "path"), await self._variables())
        command = [_PYTHON, "-I", "-", url, path]
        result = await self._desktop.execute(
            command, stdin=guest_programs.DOWNLOAD.encode(), timeout=DOWNLOAD_TIMEOUT_S
        )
        if result.returncode:
            return web.Response(text=f"Failed to download {url}. Error: {_text(result.stderr).strip()}", status=500)
        return web.Response(text=f"File downloaded successfully: {_text(result.stdout).strip()} bytes")

    async def list_directory(self, request: web.Request) -> web.Response:
        """Everything below a folder."""
        path = _required(await _body(request), "path")
        command = [_PYTHON, "-I", "-", path]
        result = await self._desktop.execute(
            command, stdin=guest_programs.LIST_DIRECTORY.encode(), timeout=HELPER_TIMEOUT_S
        )
        if result.returncode == guest_programs.NO_DIRECTORY:
            return web.json_response({"error": "The provided path is not a directory"}, status=400)
        if result.returncode:
            raise DesktopError(f"the folder {path} could not be listed: {_text(result.stderr).strip()[-500:]}")
        return web.json_response({"directory_tree": json.loads(result.stdout)})

    async def desktop_path(self, request: web.Request) -> web.Response:
        """The folder `Desktop` of the user."""
        path = f"{await self._home()}/Desktop"
        if (await self._desktop.execute(["test", "-d", path], timeout=HELPER_TIMEOUT_S)).returncode:
            return web.json_response({"error": "Unsupported operating system or desktop path not found"}, status=404)
        return web.json_response({"desktop_path": path})

    async def wallpaper(self, request: web.Request) -> web.Response:
        """Content of the background's image; where none was set, what is shown instead."""
        setting = await self._helper(["dconf", "read", "/org/gnome/desktop/background/picture-uri"])  # not the default
        path = setting.strip().replace("file://", "").replace("'", "")
        try:
            body = await self._desktop.read_file(path or "/")
        except OSError:
            spec = self._desktop.spec
            body = encode_png(np.full((spec.height, spec.width, 3), BACKGROUND, np.uint8))
        return web.Response(body=body, content_type="image/png")

    async def change_wallpaper(self, request: web.Request) -> web.Response:
        """Set the background's image."""
        path = expand_path(_required(await _body(request), "path"), await self._variables())
        if (await self._desktop.execute(["test", "-e", path], timeout=HELPER_TIMEOUT_S)).returncode:
            return web.Response(text=f"File not found: {path}", status=404)
        await self._helper(["gsettings", "set", "org.gnome.desktop.background", "picture-uri", f"file://{path}"])
        return web.Response(text="Wallpaper changed successfully")

    # --- parts

    async def _helper(self, command: list[str]) -> str:
        """Output of a small program. Raises `DesktopError` when it fails or is missing."""
        result = await self._desktop.execute(command, timeout=HELPER_TIMEOUT_S)
        if result.returncode:
            raise DesktopError(f"{command[0]} failed: {_text(result.stderr).strip() or result.returncode}")
        return _text(result.stdout)

    async def _variables(self) -> dict[str, str]:
        """The environment of programs on the desktop."""
        if self._environment is None:
            lines = (await self._helper(["env", "-0"])).split("\0")
            self._environment = dict(line.split("=", 1) for line in lines if "=" in line)
        return self._environment

    async def _home(self) -> str:
        return (await self._variables()).get("HOME", "/home/user")


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        data = json.loads(await request.text())
    except ValueError as error:
        raise BadRequest(f"the body is no JSON: {error}") from error
    if not isinstance(data, dict):
        raise BadRequest("the body must be a JSON object")
    return data


def _required(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise BadRequest(f"{name} is required")
    return value


def _finished(result: CommandResult) -> dict[str, Any]:
    output, error = _text(result.stdout), _text(result.stderr)
    return {"status": "success", "output": output, "error": error, "returncode": result.returncode}


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _attachment(name: str) -> str:
    safe = "".join(character if character.isalnum() or character in "._- " else "_" for character in name)
    return f'attachment; filename="{safe.encode("ascii", "replace").decode()}"'
