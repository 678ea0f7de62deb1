"""The page that shows the desktops, in a real browser."""

from __future__ import annotations

import json

import pytest

from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.server.cluster_server import ClusterServer, ServerSettings
from dart_gym.core.actions import Click, Drag, Type
from tests.dart_gym.cluster.headless_browser import headless_page, wait_for
from tests.dart_gym.cluster.serving import watch_proxy

pytestmark = pytest.mark.desktop

TOKEN = "a long random token"
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><b id=owned>bold</b>"
TASK = {"id": "hostile", "instruction": HOSTILE, "evaluator": {"func": "infeasible"}}
RECORD_PROBLEMS = """
window.problems = [];
for (const kind of ["securitypolicyviolation", "error", "unhandledrejection"])
  addEventListener(kind, event => problems.push(kind + (event.violatedDirective || event.message || event.reason)));
"""
CARDS = "document.querySelectorAll('.card').length"


@pytest.fixture
async def page(tmp_path):
    async with headless_page(tmp_path / "profile") as page:
        await page.call("Page.enable")
        await page.call("Page.addScriptToEvaluateOnNewDocument", source=RECORD_PROBLEMS)
        yield page
        assert await page.evaluate("problems") == []


def texts(selector: str) -> str:
    return f"[...document.querySelectorAll({json.dumps(selector)})].map(element => element.textContent)"


@pytest.mark.thorough
async def test_the_grid_and_one_desktop_big(page):
    settings = ServerSettings(listen="ws://127.0.0.1:0", desktops=3, open=True)
    async with ClusterServer(settings) as server:
        client = ClusterClient(server.url)
        async with client.session() as drawn, client.session() as real:
            await drawn.reset("fake/two-steps", seed=0)
            await real.reset(TASK, seed=0, desktop={"width": 640, "height": 480})
            for action in (Click(100, 200), Type(HOSTILE), Drag(((10, 10), (300, 300))), Click(9999, 5)):
                await real.step(action)
            await page.navigate(f"{server.url.replace('ws://', 'http://')}/watch")
            await wait_for(page, f"{CARDS} === 2")
            await wait_for(page, "[...document.querySelectorAll('.card img')].every(image => image.naturalWidth)")
            assert await page.evaluate(texts(".card .task")) == ["fake/two-steps", "osworld/hostile"]
            assert (await page.evaluate(texts(".card .instruction")))[1] == HOSTILE
            assert await page.evaluate(texts(".card .chip")) == ["policy", "policy"]
            assert await page.evaluate(texts(".card .step")) == ["step 0", "step 4"]
            stats = (await page.evaluate(texts("#stats")))[0]
            assert "2 of 3desktops lent" in stats and "2sessions" in stats and "0waiting" in stats

            await page.evaluate("document.querySelectorAll('.card')[1].click()")
            await wait_for(page, "document.querySelector('dialog img').naturalWidth === 640")
            rows = await page.evaluate(texts("dialog li"))
            assert len(rows) == 4 and HOSTILE in rows[2] and "drag (10, 10) → (300, 300)" in rows[1]
            assert rows[3].startswith("1click (100, 200)") and "off the screen" in rows[0]
            marks = (
                "[...document.querySelectorAll('dialog circle.mark:not(.halo)')].map(mark => +mark.getAttribute('cx'))"
            )
            assert await page.evaluate(marks) == [100, 10, 9999]
            assert await page.evaluate("document.title") == "Desktops"
            assert await page.evaluate("document.getElementById('owned')") is None

            await real.step(Click(5, 5))
            await wait_for(page, "document.querySelectorAll('dialog li').length === 5")
            await page.evaluate("document.getElementById('next').click()")
            await wait_for(page, "document.querySelector('dialog .task').textContent === 'fake/two-steps'")
            await page.evaluate("document.getElementById('close').click()")
        await wait_for(page, "document.querySelectorAll('.card .idle').length > 0")  # given back
    await wait_for(page, "document.getElementById('note').textContent.includes('no answer')")


async def test_the_token_comes_from_the_fragment_or_is_asked_for(page):
    async with ClusterServer(ServerSettings(listen="ws://127.0.0.1:0", desktops=1, token=TOKEN)) as server:
        async with ClusterClient(server.url, TOKEN).session() as session:
            await session.reset("fake/two-steps", seed=0)
            await page.navigate(f"{server.url.replace('ws://', 'http://')}/watch")
            await wait_for(page, "!document.getElementById('login').hidden")
            await page.evaluate(f"document.getElementById('token').value = {json.dumps(TOKEN)}")
            await page.evaluate("document.querySelector('#login button').click()")
            await wait_for(page, f"{CARDS} === 1")
            assert await page.evaluate("document.getElementById('login').hidden")

            async with watch_proxy(server.url, TOKEN) as proxy:  # another origin, so that nothing is remembered
                await page.navigate(proxy.url)
                await wait_for(page, f"{CARDS} === 1")
                assert await page.evaluate("location.hash + location.search") == ""
