"""A person at the desk: over plain HTTP, and with the page in a real browser."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator

import httpx
import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from dart_agent.commands import agent_cli
from dart_agent.episodes.episode_files import EpisodeWriter, episode_directory, read_episode
from dart_agent.episodes.play import play
from dart_agent.policies.human_policy import HumanDesk, HumanPolicy, open_human
from dart_agent.policies.oracle_policy import OraclePolicy
from dart_agent.policies.policy import Decision, Episode
from dart_agent.policies.policy_factory import PolicyOptions
from dart_gym.core.actions import Click, Done, Drag, Fail, Press, Scroll, Type, Wait, action_to_dict
from dart_gym.core.errors import AddressError
from dart_gym.core.outcomes import Observation
from dart_gym.sessions.session import Session
from tests.dart_gym.cluster.headless_browser import headless_page, wait_for


@pytest.fixture
async def desk() -> AsyncIterator[HumanDesk]:
    async with HumanDesk() as desk:
        yield desk


def key_of(policy: HumanPolicy) -> tuple[str, dict[str, str]]:
    page, _, token = policy.url.partition("#token=")
    return page, {"Authorization": f"Bearer {token}"}


def observation(value: int = 9, error: str = "") -> Observation:
    return Observation(np.full((60, 80, 3), value, np.uint8), "Do it", error)


async def answer(http: httpx.AsyncClient, page: str, turn: int, *actions) -> httpx.Response:
    listed = [action if isinstance(action, dict) else action_to_dict(action) for action in actions]
    return await http.post(f"{page}/act", content=json.dumps({"turn": turn, "actions": listed}))


async def test_turns_over_http(desk):
    policy = desk.player()
    page, headers = key_of(policy)
    policy.reset(Episode("t/x", "Do it"))
    async with httpx.AsyncClient(headers=headers, trust_env=False) as http:
        waiting = asyncio.create_task(http.get(f"{page}/state?turn=0"))
        deciding = asyncio.create_task(policy.act(observation(7)))
        state = (await waiting).json()
        assert state == {
            "turn": 1, "waiting": True, "drives": "person", "shared": False, "instruction": "Do it",
            "action_error": "", "width": 80, "height": 60,
        }  # fmt: skip
        frame = await http.get(f"{page}/frame/1")
        assert np.asarray(Image.open(io.BytesIO(frame.content)))[0, 0].tolist() == [7, 7, 7]
        assert (await http.get(f"{page}/frame/2")).status_code == 404
        assert (await answer(http, page, 2, Done())).status_code == 409
        drag = Drag(((1, 2), (3, 4)))
        assert (await answer(http, page, 1, Type("ü\n"), Press(("ctrl", "s")), drag)).status_code == 200
        assert await deciding == Decision((Type("ü\n"), Press(("ctrl", "s")), drag), actor="human")
        assert (await answer(http, page, 1, Done())).status_code == 409, "a turn is answered once"


async def test_what_is_no_action_is_explained_and_the_turn_goes_on(desk):
    policy = desk.player()
    page, headers = key_of(policy)
    deciding = asyncio.create_task(policy.act(observation()))
    async with httpx.AsyncClient(headers=headers, trust_env=False) as http:
        assert (await http.get(f"{page}/state?turn=0")).json()["waiting"]
        for body, says in (
            ("{", "not understood"),
            ("[]", "not understood"),
            ('{"turn": 1, "actions": []}', "1 to 64"),
            ('{"turn": 1, "actions": [3]}', "kind"),
            ('{"turn": 1, "actions": [{"kind": "run", "command": "rm"}]}', "unknown action"),
            ('{"turn": 1, "actions": [{"kind": "press", "keys": ["nokey"]}]}', "nokey"),
            ('{"turn": 1, "actions": [{"kind": "click", "x": "1", "y": 2}]}', "integer"),
        ):
            refused = await http.post(f"{page}/act", content=body)
            assert refused.status_code == 400 and says in refused.text, refused.text
        assert (await http.get(f"{page}/state?turn=x")).status_code == 400
        assert not deciding.done()
        await answer(http, page, 1, Fail("no"))
    assert (await deciding).actions == (Fail("no"),)


async def test_only_who_has_the_key_may_play(desk):
    policy = desk.player()
    page, headers = key_of(policy)
    async with httpx.AsyncClient(trust_env=False) as http:
        shown = await http.get(page)
        assert shown.status_code == 200 and headers["Authorization"][7:] not in shown.text
        assert "default-src 'none'" in shown.headers["Content-Security-Policy"]
        for path in ("/state", "/frame/1"):
            assert (await http.get(page + path)).status_code == 401
            assert (await http.get(page + path, headers={"Authorization": "Bearer x"})).status_code == 401
        assert (await http.post(f"{page}/act", content="{}")).status_code == 401
        assert (await http.get(f"{page}/frame/1", headers={**headers, "Host": "evil.example"})).status_code == 403
        other = page.replace("/watch/play/0", "/watch/play/7")
        assert (await http.get(f"{other}/state", headers=headers)).status_code == 404


async def test_a_page_for_every_desktop_and_a_port_that_is_taken():
    told: list[str] = []
    async with open_human(told.append) as make:
        policies = [make(None), make(None)]
        assert len(set(told)) == 2 and "/watch/play/1#token=" in told[1]
        port = int(policies[0].url.split(":")[2].split("/")[0])
        with pytest.raises(AddressError, match=str(port)):
            async with HumanDesk(port):
                pass


PRESS = """
(kind, x, y, more = {}) => { const image = document.getElementById("image"), box = image.getBoundingClientRect();
  image.dispatchEvent(new PointerEvent(kind, { bubbles: true, cancelable: true, pointerId: 1, button: 0,
    clientX: box.left + (x + 0.5) / %d * box.width, clientY: box.top + (y + 0.5) / %d * box.height, ...more })); }
"""


@pytest.mark.desktop
async def test_a_person_plays_in_a_browser(desk, tmp_path):
    policy = desk.player()
    async with headless_page(tmp_path / "profile") as page, Session() as session:
        await page.call("Page.enable")
        await page.navigate(policy.url)

        async def person() -> None:
            for _ in range(2):
                await wait_for(page, "playView.mine")
                point = await session.oracle()
                assert isinstance(point, Click)
                box = json.loads(await page.evaluate(
                    "JSON.stringify([...Object.values(document.getElementById('image').getBoundingClientRect().toJSON()),"
                    " ...playView.size])"
                ))  # fmt: skip
                x, y = box[0] + (point.x + 0.5) * box[2] / box[8], box[1] + (point.y + 0.5) * box[3] / box[9]
                for kind in ("mousePressed", "mouseReleased"):
                    await page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
                await wait_for(page, f"playView.turn !== {policy.turn} || !playView.mine")

        playing = asyncio.create_task(person())
        with EpisodeWriter(tmp_path, "fake/two-steps", 1, policy="human") as writer:
            episode = writer.finish(await play(policy, session, "fake/two-steps", seed=1, recorder=writer))
        await playing
        assert await page.evaluate("location.hash") == "", "the key is out of sight"
    assert episode.success
    recorded = read_episode(episode_directory(tmp_path, "fake/two-steps", 1))
    assert [step.actor for step in recorded.steps] == ["human", "human"]


@pytest.mark.desktop
async def test_what_the_page_makes_of_hands(desk, tmp_path):
    policy = desk.player()
    policy.reset(Episode("t/x", "<b>Do it</b>"))
    async with headless_page(tmp_path / "profile") as page:
        await page.call("Page.enable")
        await page.navigate(policy.url)

        async def turn(*gestures: str) -> tuple:
            deciding = asyncio.create_task(policy.act(observation(error="off the screen")))
            await wait_for(page, f"playView.mine && playView.turn === {policy.turn + (0 if policy.waits else 1)}")
            for gesture in gestures:
                await page.evaluate(f"(pointer => {{ {gesture} }})({PRESS % (80, 60)})")
            return (await asyncio.wait_for(deciding, 20)).actions

        def key(name: str, **held: bool) -> str:
            event = json.dumps({"key": name, "bubbles": True, "cancelable": True, **held})
            return f"document.getElementById('screen').dispatchEvent(new KeyboardEvent('keydown', {event}))"

        tap = "pointer('pointerdown', 20, 30); pointer('pointerup', 20, 30)"
        assert await turn(tap) == (Click(20, 30),)
        assert await turn(tap, tap) == (Click(20, 30, count=2),)
        right = tap.replace("30)", "30, {button: 2, ctrlKey: true})")
        assert await turn(right) == (Click(20, 30, button="right", modifiers=("ctrl",)),)
        away = tap.replace("20, 30", "60, 10")
        for second in (away, right):  # no double click; what the first one did had not been seen
            assert await turn(f"{tap}; {second}") == (Click(20, 30),)
        assert await turn("pointer('pointerdown', 5, 6); pointer('pointerup', 70, 50)") == (Drag(((5, 6), (70, 50))),)
        turned = "new WheelEvent('wheel', {deltaY: 120, cancelable: true, clientX: 0, clientY: 0})"
        wheel = f"document.getElementById('image').dispatchEvent({turned})"
        assert await turn(wheel) == (Scroll(0, 0, dy=3),)
        assert await turn(key("H"), key("ü"), key("x"), key("Backspace"), key("Enter")) == (
            Type("Hü"),
            Press(("enter",)),
        )
        assert await turn(key("s", ctrlKey=True)) == (Press(("ctrl", "s")),)
        assert await turn(key("Tab", shiftKey=True)) == (Press(("shift", "tab")),)
        assert await turn(key("a"), tap) == (Type("a"), Click(20, 30))
        assert await turn("document.getElementById('wait').click()") == (Wait(1),)
        assert await page.evaluate("document.getElementById('play-instruction').textContent") == "<b>Do it</b>"
        assert await page.evaluate("document.getElementById('problem').textContent") == "off the screen"
        done = "document.getElementById('answer').value = '42'; document.getElementById('done').click()"
        assert await turn(done) == (Done("42"),)


class Slowly:
    """The oracle, which decides when it is told to; and what each of its episodes was."""

    def __init__(self, oracle) -> None:
        self.may, self._oracle, self.decided = asyncio.Semaphore(0), OraclePolicy(oracle), 0

    def reset(self, episode: Episode) -> None:
        self._oracle.reset(episode)

    async def act(self, observation: Observation) -> Decision:
        await self.may.acquire()
        self.decided += 1
        return await self._oracle.act(observation)


@pytest.mark.desktop
async def test_a_person_takes_over_and_gives_back(desk, tmp_path):
    async with headless_page(tmp_path / "profile") as page, Session() as session:
        inner = Slowly(session.oracle)
        policy = desk.player(inner)
        await page.call("Page.enable")
        await page.navigate(policy.url)
        turn, button = "document.getElementById('turn').textContent", "document.getElementById('drive')"

        async def person() -> None:
            await wait_for(page, f"{turn} === 'the policy plays' && playView.turn === 1")  # they see what it sees
            assert await page.evaluate("document.getElementById('done').disabled"), "nobody acts out of turn"
            await page.evaluate(f"{button}.click()")
            await wait_for(page, f"{button}.textContent === 'Give back to the policy'")
            inner.may.release()  # the decision that was being made is carried out
            await wait_for(page, f"{turn} === 'your turn' && playView.turn === 2")
            await page.evaluate("document.getElementById('wait').click()")
            await wait_for(page, f"{turn} === 'your turn' && playView.turn === 3")
            await page.evaluate(f"{button}.click()")
            await wait_for(page, f"{turn} === 'the policy plays'")
            inner.may.release()

        playing = asyncio.create_task(person())
        with EpisodeWriter(tmp_path, "fake/two-steps", 1, policy="vlm") as writer:
            episode = writer.finish(await play(policy, session, "fake/two-steps", seed=1, recorder=writer))
        await playing
    assert episode.success and inner.decided == 2
    recorded = read_episode(episode_directory(tmp_path, "fake/two-steps", 1))
    assert [step.actor for step in recorded.steps] == ["oracle", "human", "oracle"]


@pytest.mark.process
def test_a_command_that_a_person_may_take_over(tmp_path):
    command = ["run", "fake/two-steps", "--policy", "oracle", "--take-over", "--out", str(tmp_path / "one")]
    result = CliRunner().invoke(agent_cli.app, command, catch_exceptions=False)
    assert "watch and take over here: http://127.0.0.1:" in result.output and "score 1" in result.output
    assert PolicyOptions(policy="oracle", take_over=True).settings() == {"take_over": True}
