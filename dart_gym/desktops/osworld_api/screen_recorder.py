"""Records the screen of a desktop with ffmpeg, as OSWorld's server does."""

import asyncio
import time

from dart_gym.core.errors import DesktopError
from dart_gym.desktops.base.desktop import Desktop
from dart_gym.desktops.osworld_api.api_commands import BadRequest

_VIDEO, _PID = "/tmp/recording.mp4", "/tmp/recording.pid"
_START_TIMEOUT_S, _STOP_TIMEOUT_S = 10.0, 20.0
_POLL_S = 0.05


class Recorder:
    """At most one recording at a time."""

    def __init__(self, desktop: Desktop) -> None:
        self._desktop = desktop

    async def start(self) -> None:
        """Start recording and return when frames are written.

        Raises:
            BadRequest: if a recording is running.
            DesktopError: if ffmpeg is missing.
        """
        if await self._running():
            raise BadRequest("Recording is already in progress.")
        await self._shell(f"rm -f {_VIDEO}")
        size = f"{self._desktop.spec.width}x{self._desktop.spec.height}"
        even = "crop=trunc(iw/2)*2:trunc(ih/2)*2"  # the codec takes no odd sizes
        record = f'ffmpeg -nostdin -y -f x11grab -draw_mouse 1 -s {size} -i "$DISPLAY" -r 30 -vf "{even}"'
        script = f"echo $$ > {_PID}; exec {record} -c:v libx264 -preset veryfast -pix_fmt yuv420p {_VIDEO}"
        await self._desktop.launch(["/bin/sh", "-c", script])
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not await self._shell(f"test -e {_VIDEO}"):
            if time.monotonic() > deadline:
                raise DesktopError("ffmpeg did not start to record; is it installed? next step: apt-get install ffmpeg")
            await asyncio.sleep(_POLL_S)

    async def stop(self) -> bytes:
        """Stop recording and return the video (MP4).

        Raises:
            BadRequest: if no recording is running.
            DesktopError: if ffmpeg left no video.
        """
        if not await self._running():
            raise BadRequest("No recording in progress to stop.")
        await self._shell(f"kill -INT $(cat {_PID})")  # so that ffmpeg completes the file
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while await self._running():
            if time.monotonic() > deadline:
                await self._shell(f"kill -KILL $(cat {_PID})")
                raise DesktopError(f"ffmpeg did not end within {_STOP_TIMEOUT_S:g} s and was killed")
            await asyncio.sleep(_POLL_S)
        data = await self._desktop.read_file(_VIDEO)
        if not data:
            raise DesktopError("ffmpeg left an empty video")
        return data

    async def _running(self) -> bool:
        return await self._shell(f"test -f {_PID} && kill -0 $(cat {_PID})")

    async def _shell(self, script: str) -> bool:
        return (await self._desktop.execute(["/bin/sh", "-c", script], timeout=10.0)).returncode == 0
