"""Draw docs/images/episodes.png: the page of a run with one of its failures open, in a headless Chromium.

python scripts/page_picture.py runs/quickstart [docs/images/episodes.png]
"""

import asyncio
import base64
import sys
import tempfile
from pathlib import Path

from dart_agent.viewer.recorded_episodes import RecordedEpisodes
from dart_gym.cluster.server.page_server import PageServer
from tests.dart_gym.cluster.headless_browser import headless_page, wait_for


async def main(run: Path, picture: Path) -> None:
    """Open the page, jump to the first failure, and write what is to be seen."""
    records = RecordedEpisodes([run])
    with tempfile.TemporaryDirectory() as profile:
        async with PageServer(records.views, records.routes) as server, headless_page(Path(profile)) as page:
            size = {"width": 1280, "height": 800, "deviceScaleFactor": 1, "mobile": False}
            await page.call("Emulation.setDeviceMetricsOverride", **size)
            await page.call("Page.enable")
            await page.navigate(server.url)
            await wait_for(page, "document.querySelectorAll('.episode').length > 0", timeout=120)
            await page.evaluate("document.getElementById('failure-after').click()")
            await wait_for(page, "document.querySelector('#replay svg image') !== null")
            shown = "[...document.querySelectorAll('#replay .rail img')].every(image => image.naturalWidth)"
            await wait_for(page, shown)
            shot = await page.call("Page.captureScreenshot", format="png")
            picture.write_bytes(base64.b64decode(str(shot["data"])))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(*sys.argv[2:] or ["docs/images/episodes.png"])))
