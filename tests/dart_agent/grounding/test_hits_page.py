"""The picture of hits and misses: order, escaping, and what a browser makes of it at 800 pixels."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from dart_agent.grounding.candidate import Box, Candidate
from dart_agent.grounding.grounding_scores import Answer
from dart_agent.grounding.hits_page import hits_page
from dart_agent.grounding.screenspot import GroundingItem
from tests.dart_gym.cluster.headless_browser import headless_page

SCREEN = np.full((450, 800, 3), 250, np.uint8)
EVIL = '<script>document.title="taken"</script><img src=x onerror=alert(1)>'


def answers() -> list[Answer]:
    def item(words: str, *boxes: Box, application: str = "files") -> GroundingItem:
        return GroundingItem("set.json:1", words, boxes, SCREEN, (800, 450), "text", application, "debian")

    return [
        (item("Save", Box(80, 45, 160, 90)), [Candidate(120, 60), Candidate(400, 225)]),
        (item(EVIL, Box(400, 100, 500, 200), Box(600, 10, 700, 50), application="<b>mail</b>"), [Candidate(20, 20)]),
        (item("a word " + "w" * 300, Box(5, 5, 9, 9)), []),
    ]


def test_misses_come_first_and_a_shared_screen_is_in_it_once():
    page = hits_page("m on <set>", answers())
    assert re.findall(r'<b class="[a-z ]+">([a-z ]+)</b>', page) == ["miss", "nothing found", "hit"]
    assert page.count("<image ") == 1 and page.count("<use ") == 3
    assert page.count("<rect ") == 4 and page.count("<circle ") == 3
    assert "<h1>m on &lt;set&gt;</h1>" in page and "<td>0.333" in page
    assert "<script" not in page and "&lt;script&gt;" in page and "<b>mail" not in page


@pytest.mark.timeout(180)
async def test_a_browser_shows_it_at_800_pixels(tmp_path: Path):
    (tmp_path / "hits.html").write_text(hits_page("set", answers()), encoding="utf-8")
    async with headless_page(tmp_path / "profile") as page:
        size = {"width": 800, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        await page.call("Emulation.setDeviceMetricsOverride", **size)
        await page.navigate(f"file://{tmp_path}/hits.html")
        assert await page.evaluate("document.title") == "set"
        assert await page.evaluate("document.documentElement.scrollWidth") == 800
        shares = await page.evaluate("""(() => {
            const svg = document.querySelectorAll('figure svg')[2], outer = svg.getBoundingClientRect();
            const part = at => [(at.left - outer.left) / outer.width, (at.top - outer.top) / outer.height];
            return [outer.width, ...part(svg.querySelector('rect').getBoundingClientRect()),
                    ...part(svg.querySelector('use').getBoundingClientRect())];
        })()""")
    assert shares[0] > 300 and shares[1:] == pytest.approx([0.1, 0.1, 0, 0], abs=0.01)
