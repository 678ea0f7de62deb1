"""Draw the pictures of the page that stand in the docs, in a headless Chromium.

python scripts/page_picture.py runs/quickstart [docs/images/episodes.png]              a run, its first success open
python scripts/page_picture.py ws+unix:///tmp/gym.sock [docs/images/watch.png] [WIDTH] desktops at work
"""

import asyncio
import base64
import contextlib
import sys
import tempfile
from pathlib import Path

from dart_agent.viewer.recorded_episodes import RecordedEpisodes
from dart_gym.cluster.server.page_server import PageServer
from dart_gym.cluster.server.watch_proxy import cluster_routes
from dart_gym.desktops.applications.devtools import DevTools

sys.path.append(str(Path(__file__).resolve().parent.parent))  # tests are not installed
from tests.dart_gym.cluster.headless_browser import headless_page, wait_for


async def success(page: DevTools) -> None:
    """Wait until all episodes are listed, and open the first success, as the key j does."""
    await wait_for(page, "document.body.dataset.listed", timeout=120)
    await page.evaluate("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'j', bubbles: true}))")
    await wait_for(page, "document.querySelector('#replay svg image') !== null")
    await wait_for(page, "[...document.querySelectorAll('#replay .rail img')].every(image => image.naturalWidth)")


async def desktops(page: DevTools) -> None:
    """Wait until seven desktops show a screen and the rates are known."""
    await wait_for(page, "document.querySelectorAll('.card').length > 0", timeout=120)
    await wait_for(
        page, "[...document.querySelectorAll('.card img')].filter(image => image.naturalWidth).length > 6", timeout=60
    )
    await wait_for(page, "/[1-9]\\d*episodes/.test(document.getElementById('stats').textContent)", timeout=120)


async def main(target: str, picture: str = "", width: str = "1280") -> None:
    """Open the page of a run or of a cluster, and write what is to be seen."""
    async with contextlib.AsyncExitStack() as stack:
        if "://" in target:
            views, routes = ["live"], await stack.enter_async_context(cluster_routes(target))
        else:
            records = RecordedEpisodes([Path(target)])
            views, routes = records.views, records.routes
        profile = stack.enter_context(tempfile.TemporaryDirectory())
        server = await stack.enter_async_context(PageServer(views, routes))
        page = await stack.enter_async_context(headless_page(Path(profile)))
        size = {"width": int(width), "height": 800, "deviceScaleFactor": 1, "mobile": False}
        await page.call("Emulation.setDeviceMetricsOverride", **size)
        await page.navigate(server.url)
        await (desktops if "://" in target else success)(page)
        shot = await page.call("Page.captureScreenshot", format="png")
        default = "docs/images/watch.png" if "://" in target else "docs/images/episodes.png"
        Path(picture or default).write_bytes(base64.b64decode(str(shot["data"])))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
