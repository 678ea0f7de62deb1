"""The page as axe-core sees it, in all of its views, light and dark, wide and narrow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dart_agent.policies.human_policy import HumanDesk
from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.server.cluster_server import ClusterServer, ServerSettings
from dart_gym.desktops.applications.devtools import DevTools
from tests.dart_agent.viewer.recorded_runs import write_run
from tests.dart_agent.viewer.test_episodes_page import SHOWN, press, served
from tests.dart_gym.cluster.headless_browser import headless_page, wait_for

pytestmark = pytest.mark.axe

AXE = Path(__file__).parents[3] / ".venv-axe/node_modules/axe-core/axe.min.js"
FOUND = """axe.run(document, {preload: false}).then(found => found.violations
  .filter(one => ["serious", "critical"].includes(one.impact))
  .map(one => one.id + ": " + one.nodes.map(node => node.html.slice(0, 160) + " " + node.failureSummary).join(" ")))"""


async def look(page: DevTools, width: int, dark: bool) -> None:
    """As a window of that width, in a scheme of colours."""
    await page.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    await page.call("Emulation.setEmulatedMedia", features=[scheme])


async def findings(page: DevTools) -> list[str]:
    """What axe-core calls serious or critical, in whatever the page shows now."""
    if not await page.evaluate("typeof axe === 'object'"):
        await page.evaluate(AXE.read_text(encoding="utf-8") + "; 0")
    return [str(one) for one in await page.evaluate(FOUND)]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 480])
async def test_no_view_has_a_serious_finding(tmp_path, width, dark):
    run = write_run(tmp_path / "run", 24)
    async with headless_page(tmp_path / "profile") as page, served(run) as server:
        await look(page, width, dark)
        await page.call("Page.enable")
        await page.navigate(server.url)
        await wait_for(page, f"{SHOWN}.length === 48 && document.querySelectorAll('#beside .curve').length === 6")
        found = {"episodes": await findings(page)}
        await press(page, "f")
        await wait_for(page, "document.querySelector('#replay svg image') !== null")
        found["episode"] = await findings(page)
        await page.evaluate("location.hash = '#compare'")
        await wait_for(page, "document.body.dataset.pairs === '24'")
        found["compare"] = await findings(page)
        await page.evaluate("document.querySelector('#pairs tbody button').click()")
        await wait_for(page, "document.querySelectorAll('#both svg image').length === 2")
        found["both"] = await findings(page)
        await page.evaluate("location.hash = '#training'")
        await wait_for(page, "document.querySelectorAll('#curves .curve').length > 4")
        found["training"] = await findings(page)
        async with ClusterServer(ServerSettings(listen="ws://127.0.0.1:0", desktops=2, open=True)) as cluster:
            async with ClusterClient(cluster.url).session() as session:
                await session.reset("fake/two-steps", seed=0)
                await session.step(await session.oracle())
                await page.navigate(f"{cluster.url.replace('ws://', 'http://')}/watch")
                await wait_for(page, "document.querySelector('.card img')?.naturalWidth > 0")
                found["live"] = await findings(page)
                await page.evaluate("document.querySelector('.card').click()")
                await wait_for(page, "document.querySelector('dialog img').naturalWidth > 0")
                found["desktop"] = await findings(page)
        async with HumanDesk() as desk:
            await page.navigate(desk.player().url)
            await wait_for(page, "document.getElementById('turn').textContent !== 'not yet'")
            found["play"] = await findings(page)
            await page.evaluate("document.querySelector('main').append(document.createElement('button'))")
            assert "button-name" in (await findings(page))[0], "what is wrong is found"
        assert {view: problems for view, problems in found.items() if problems} == {}, json.dumps(found, indent=1)
