"""Plain HTTP on the cluster's port: health, metrics, the state and the frames that the page shows."""

from __future__ import annotations

import asyncio
import io
import os
import re

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.client.cluster_servers import ClientSettings
from dart_gym.cluster.server.live_view import SHOWN_TEXT, encode
from dart_gym.cluster.server.server_metrics import BUCKETS_S, Histogram
from dart_gym.cluster.server.watch_page import content_policy, page
from dart_gym.core.actions import Click, Drag, Move, Type
from dart_gym.core.errors import EpisodeStateError
from dart_gym.desktops.fake_desktop import FakeDesktop
from dart_gym.utils.page_guard import names_this_machine

TWO_STEPS = "fake/two-steps"
TOKEN = "a long random token"


def http(server, token: str = "", **headers: str) -> httpx.AsyncClient:
    """A client of a server's plain routes."""
    path = server.url.removeprefix("ws+unix://")
    unix = server.url.startswith("ws+unix://")
    transport = httpx.AsyncHTTPTransport(uds=path) if unix else None
    base = "http://localhost" if unix else server.url.replace("ws://", "http://")
    if token:
        headers["Authorization"] = f"Bearer {token}"
    return httpx.AsyncClient(transport=transport, base_url=base, headers=headers, trust_env=False, timeout=10.0)


def samples(text: str) -> dict[tuple[str, frozenset], float]:
    """Values of Prometheus's text by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(found: dict, name: str, **labels: str) -> float:
    return found["dart_gym_" + name, frozenset(labels.items())]


# --- metrics


async def test_metrics_count_what_happened(server, client):
    async with client.session() as session:
        await session.reset(TWO_STEPS, seed=0)
        await session.step(Move(3, 3))
        while (result := await session.step(await session.oracle())).terminal is None:
            pass
        with pytest.raises(EpisodeStateError):
            await session.step(Move(1, 1))
        async with http(server) as plain:
            answer = await plain.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = samples(answer.text)
    assert value(found, "operation_seconds_count", op="step") == result.step_index + 1
    assert value(found, "operation_seconds_count", op="reset") == 1
    assert value(found, "errors_total", op="step", code="state") == 1
    assert value(found, "episodes_ended_total", terminal="done", evaluation="ok") == 1
    assert value(found, "queue_wait_seconds_count") == 1
    assert value(found, "phase_seconds_total", phase="capture") > 0
    assert value(found, "events_total", event="boots") == 1
    assert value(found, "desktops", phase="idle") == 1 and value(found, "desktops", phase="held") == 1
    assert value(found, "sessions") == 1 and value(found, "waiting") == 0 and value(found, "draining") == 0
    assert value(found, "desktop_limits", resource="memory_mb") == 4096
    assert value(found, "frame_bytes_total", direction="shared") >= 3 * 168 * 224
    assert 0 < value(found, "frame_bytes_total", direction="sent") < 3 * 168 * 224  # the pixels went by memory
    assert found["process_resident_memory_bytes", frozenset()] > 1e6
    assert any(name == "dart_gym_build_info" for name, _ in found)


async def test_clients_texts_are_no_labels(server, client):
    async with client.session() as session:
        await session.reset({"id": 'x"}\n', "instruction": 'a"\n', "evaluator": {"func": "infeasible"}}, seed=0)
        async with http(server) as plain:
            text = (await plain.get("/metrics")).text
    assert samples(text) and 'x"' not in text


@given(st.lists(st.floats(0, 1000), max_size=60))
def test_a_histogram_counts_each_observation_once(seconds):
    histogram = Histogram()
    for one in seconds:
        histogram.add(one)
    for bound, count in histogram.cumulative()[:-1]:
        assert count == sum(one <= float(bound) for one in seconds)
    assert histogram.cumulative()[-1] == ("+Inf", len(seconds)) and len(histogram.cumulative()) == len(BUCKETS_S) + 1
    assert histogram.total == pytest.approx(sum(seconds))


# --- state and frames


async def test_the_state_tells_the_last_actions(server, client):
    async with client.session() as session, http(server) as plain:
        await session.reset(TWO_STEPS, seed=3, max_steps=100)
        for _ in range(14):
            await session.step(Move(5, 6))
        await session.step(Type("x" * 3000))
        await session.step(Drag(((1, 1), (5000, 5))))
        first, second = (await plain.get("/watch/state")).json()["desktops"]
    assert first["task"] == TWO_STEPS and first["instruction"].startswith("Click ") and first["step"] == 16
    assert (first["width"], first["height"]) == (168, 224) and first["terminal"] == "" and first["score"] is None
    shown = first["actions"]
    assert [entry["step"] for entry in shown] == list(range(5, 17))
    assert shown[0]["action"] == {"kind": "move", "x": 5, "y": 6}
    assert shown[-2]["action"]["text"] == "x" * SHOWN_TEXT + "…"
    assert shown[-1]["action"]["path"] == [[1, 1], [5000, 5]] and "outside" in shown[-1]["error"]
    assert second["phase"] == "idle" and second["frame"] == 0 and second["actions"] == []


async def test_the_state_tells_who_plays(server):
    client = ClusterClient(server.url, settings=ClientSettings(name="after RL"))
    async with client.session() as named, ClusterClient(server.url).session() as unnamed, http(server) as plain:
        for session in (named, unnamed):
            await session.reset(TWO_STEPS, seed=0)
        assert [one["client"] for one in (await plain.get("/watch/state")).json()["desktops"]] == [
            "after RL",
            f"pid {os.getpid()}",
        ]


async def test_a_frame_is_what_the_policy_saw_last(server, client):
    async with client.session() as session, http(server) as plain:
        await session.reset(TWO_STEPS, seed=1)
        action = await session.oracle()
        result = await session.step(action)
        answer = await plain.get("/watch/frame/0")
        shown = np.asarray(Image.open(io.BytesIO(answer.content)).convert("RGB"), np.int16)
        assert answer.headers["content-type"] == "image/jpeg" and shown.shape == (224, 168, 3)
        assert np.abs(shown - result.observation.screenshot).mean() < 4
        unchanged = await plain.get("/watch/frame/0", headers={"If-None-Match": answer.headers["etag"]})
        assert unchanged.status_code == 304 and unchanged.content == b""
        await session.step(Move(1, 1))
        changed = await plain.get("/watch/frame/0", headers={"If-None-Match": answer.headers["etag"]})
        assert changed.status_code == 200 and changed.content != answer.content
        assert (await plain.get("/watch/frame/0?size=huge")).status_code == 400
        assert (await plain.get("/watch/frame/1")).status_code == 404
        assert (await plain.get("/watch/frame/../../etc")).status_code == 404
    async with http(server) as plain:  # the desktop went back: what it showed is nobody's business any more
        assert (await plain.get("/watch/frame/0")).status_code == 404


async def test_watching_captures_nothing(server, client, desktops, monkeypatch):
    captures = 0
    screenshot = FakeDesktop.screenshot

    async def counted(self):
        nonlocal captures
        captures += 1
        return await screenshot(self)

    monkeypatch.setattr(FakeDesktop, "screenshot", counted)
    async with client.session() as session, http(server) as plain:
        await session.reset(TWO_STEPS, seed=1)
        answers = await asyncio.gather(*(plain.get(f"/watch/frame/0?size={s}") for s in ("small", "large") * 5))
        await plain.get("/watch/state")
        await session.step(Move(1, 1))
    assert {answer.status_code for answer in answers} == {200} and captures == 2


def test_wide_frames_are_scaled_down_and_narrow_ones_kept():
    for (height, width), expected in {(1080, 1920): (480, 270), (224, 168): (168, 224), (1, 2000): (480, 1)}.items():
        image = Image.open(io.BytesIO(encode(np.zeros((height, width, 3), np.uint8), 480, 70)))
        assert image.size == expected


# --- HTTP


async def test_health_page_and_errors(server):
    async with http(server) as plain:
        health = await plain.get("/healthz")
        assert (health.status_code, health.text) == (200, "ok\n")
        html = await plain.get("/watch")
        assert html.headers["content-type"] == "text/html; charset=utf-8"
        head = await plain.head("/watch")
        assert head.content == b"" and head.headers["content-length"] == html.headers["content-length"]
        for path in ("/", "/nothing", "/watch/", "/watch/stat"):
            missing = await plain.get(path)
            assert missing.status_code == 404 and "/watch" in missing.text
        refused = await plain.post("/healthz")
        assert refused.status_code == 405 and refused.headers["allow"] == "GET, HEAD"
        for answer in (health, html, missing, refused):
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cross-origin-resource-policy"] == "same-origin"


@given(target=st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
async def test_any_target_has_an_answer(server, target):
    reader, writer = await asyncio.open_unix_connection(server.url.removeprefix("ws+unix://"))
    writer.write(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    status = await asyncio.wait_for(reader.readline(), 5)
    writer.close()
    assert status.split()[1] in (b"200", b"400", b"404")


async def test_a_token_guards_what_the_desktops_do(start_server):
    server = await start_server(listen="ws://127.0.0.1:0", token=TOKEN)
    async with ClusterClient(server.url, TOKEN).session() as session:
        await session.reset(TWO_STEPS, seed=0)
        for token, status in (("", 401), ("wrong", 401), (TOKEN, 200)):
            async with http(server, token) as plain:
                for path in ("/metrics", "/watch/state", "/watch/frame/0"):
                    assert (await plain.get(path)).status_code == status
                for path in ("/healthz", "/watch"):
                    assert (await plain.get(path)).status_code == 200
        async with http(server) as plain:
            for key in ("token", "access_token"):
                assert (await plain.get("/watch/state", params={key: TOKEN})).status_code == 401
            assert (await plain.get("/metrics")).headers["www-authenticate"] == "Bearer"


async def test_without_a_token_only_names_of_this_machine_are_answered(start_server):
    server = await start_server(listen="ws://127.0.0.1:0", open=True)
    async with http(server) as plain:
        for host, status in (("localhost", 200), ("[::1]:80", 200), ("rebound.example", 403), ("", 403)):
            assert (await plain.get("/watch/state", headers={"Host": host})).status_code == status


def test_names_of_this_machine():
    for host in ("localhost", "localhost:8765", "127.0.0.1:1", "127.8.8.8", "[::1]:9"):
        assert names_this_machine(host)
    for host in ("", "example.com", "localhost.example.com", "10.0.0.1:8765", "[::", "127.0.0.1.example.com", "a b"):
        assert not names_this_machine(host)


def test_the_page_may_run_its_own_script_and_style_only():
    html, policy = page("live", "episodes", "training", "play")
    text = html.decode()
    assert policy == content_policy(text) and policy.count("sha256-") == 2 and "unsafe" not in policy
    assert policy != content_policy(text.replace('"use strict"', '"use strictly"'))
    for pattern in (
        r"\son\w+=",
        r"\sstyle=",
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(",
        "https?://(?!www.w3.org/2000/svg)",
    ):
        assert not re.search(pattern, text), pattern


async def test_click_marks_have_what_they_need(server, client):
    async with client.session() as session, http(server) as plain:
        await session.reset(TWO_STEPS, seed=0)
        await session.step(Click(7, 9, count=2, modifiers=("ctrl",)))
        action = (await plain.get("/watch/state")).json()["desktops"][0]["actions"][0]["action"]
    assert action["kind"] == "click" and (action["x"], action["y"], action["count"]) == (7, 9, 2)


async def test_each_token_watches_its_own_desktops(start_server, tmp_path, monkeypatch):
    names = {"ada": "", "ben": "", "operator": ", watch: all"}
    lines = [f"  - {{name: {name}, env: TOKEN_{name.upper()}{rest}}}" for name, rest in names.items()]
    (tmp_path / "tokens.yaml").write_text("tokens:\n" + "\n".join(lines))
    tokens = {name: f"{name}, a long random text" for name in names}
    for name, token in tokens.items():
        monkeypatch.setenv(f"TOKEN_{name.upper()}", token)
    server = await start_server(listen="ws://127.0.0.1:0", tokens=tmp_path / "tokens.yaml")
    async with ClusterClient(server.url, tokens["ada"]).session() as session:
        await session.reset(TWO_STEPS, seed=0)
        for name, sees in {"ada": True, "ben": False, "operator": True}.items():
            async with http(server, tokens[name]) as plain:
                state = (await plain.get("/watch/state")).json()["desktops"][0]
                assert (
                    state["private"] is not sees and bool(state["instruction"]) is sees and bool(state["frame"]) is sees
                )
                assert (await plain.get("/watch/frame/0")).status_code == (200 if sees else 403)


async def test_a_draining_server_is_not_healthy(start_server, until):
    server = await start_server(drain_s=20.0)
    client = ClusterClient(server.url)
    async with client.session() as session, http(server) as plain:
        await session.reset(TWO_STEPS, seed=0)
        draining = asyncio.create_task(server.drain())
        await until(lambda: server.draining)
        health = await plain.get("/healthz")
        assert (health.status_code, health.text) == (503, "draining\n")
        assert value(samples((await plain.get("/metrics")).text), "draining") == 1
        assert (await session.step(Move(1, 1))).step_index == 1
    await draining
