"""Sites in real desktops: by name only, a state for each, and nothing beyond for programs inside."""

import asyncio
import json
import socket
from dataclasses import replace

import pytest

from dart_gym.core.errors import ConfigurationError, DesktopError
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.factory import make_desktop
from dart_gym.sites.site_server import MAX_BODY, MOST_CONNECTIONS
from dart_gym.tasks.setup.setup_runner import run_steps

pytestmark = [pytest.mark.desktop, pytest.mark.security]

SPEC = DesktopSpec(width=320, height=240, sites=("mail", "board"))
REQUESTS = 5000
# Writes and reads in turn, over one connection as a browser does, and tells whose state it ever saw.
CLIENT = f"""
import http.client, json, sys
mine, seen = sys.argv[1], set()
mail = http.client.HTTPConnection("mail.test")
for number in range({REQUESTS}):
    if number % 2:
        mail.request("GET", "/state?sid=" + ("one" if number % 4 == 1 else "two"), headers={{"Cookie": "sid=one"}})
        state = json.loads(mail.getresponse().read())["stored_state"]
        seen.add(state["owner"])
        assert state["number"] == number - 1, state
    else:
        body = json.dumps({{"action": "set_current", "state": {{"owner": mine, "number": number}}}})
        mail.request("POST", "/post?sid=one", body)
        assert mail.getresponse().read() == b'{{"success":true}}'
print(sorted(seen))
"""


def played(work, *specs):
    """Run a coroutine function on started desktops."""

    async def play():
        desktops = [make_desktop(spec) for spec in specs]
        try:
            await asyncio.gather(*(desktop.start() for desktop in desktops))
            await work(*desktops)
        finally:
            await asyncio.gather(*(desktop.stop() for desktop in desktops))

    asyncio.run(asyncio.wait_for(play(), 110))


async def said(desktop, *command, timeout=60.0):
    result = await desktop.execute(list(command), timeout=timeout)
    return result.stdout.decode() + result.stderr.decode()


def test_two_episodes_on_one_site_never_see_each_other_in_ten_thousand_interleaved_requests():
    async def work(*desktops):
        for desktop in desktops:
            await desktop.set_site("mail", {})
            await desktop.seal_sites()
        names = ("one", "two")
        found = await asyncio.gather(
            *(
                said(desktop, "python3", "-c", CLIENT, name, timeout=100)
                for desktop, name in zip(desktops, names, strict=True)
            )
        )
        assert found == ["['one']\n", "['two']\n"]
        for desktop, name in zip(desktops, names, strict=True):
            state = await desktop.site_state("mail")
            assert state["current_state"] == {"owner": name, "number": REQUESTS - 2} and state["initial_state"] == {}

    played(work, SPEC, SPEC)


def test_a_site_is_reached_by_its_name_and_by_nothing_else():
    async def work(desktop):
        assert "<title>Mail</title>" in await said(desktop, "curl", "-sS", "http://mail.test/")
        assert "<title>Board</title>" in await said(desktop, "curl", "-sS", "http://board.test/any/page")
        assert await said(desktop, "curl", "-sS", "http://127.0.0.1/") == "there is no such site"
        for name in ("shop.test", "mail.google.com", "example.com"):  # not named by the task, or not ours
            assert "Could not resolve host" in await said(desktop, "curl", "-sS", f"http://{name}/")
        with pytest.raises(DesktopError, match="this desktop has no site 'shop'; it has mail, board"):
            await desktop.site_state("shop")

    played(work, SPEC)


def test_nothing_of_the_host_is_served_and_none_of_its_ports_is_reached():
    listener = socket.create_server(("127.0.0.1", 0))

    async def work(desktop):
        paths = ["/../../../../etc/ld.so.conf", "/%2e%2e/%2e%2e/site_state.py", "/..%2f..%2fsite_server.py"]
        paths += ["/state.json", "//etc/ld.so.conf", "/%00.html", "/" + "a" * 6000 + ".x"]
        for path in paths:
            answer = await said(desktop, "curl", "-sS", "--path-as-is", f"http://mail.test{path}")
            assert answer == "not found" or "Bad Request" in answer or "400" in answer, (path, answer)
        port = listener.getsockname()[1]
        assert "Failed to connect" in await said(desktop, "curl", "-sS", f"http://127.0.0.1:{port}/")
        assert (
            await said(desktop, "curl", "-sS", "-H", f"Host: 127.0.0.1:{port}", "http://mail.test/")
            == "there is no such site"
        )
        assert "Permission denied" in await said(
            desktop, "python3", "-c", "import socket; socket.create_server(('127.0.0.2', 80))"
        )  # so that nothing inside can stand in for a site

    played(work, SPEC)
    listener.close()


def test_what_a_program_inside_sends_ends_nothing_and_changes_no_more_than_a_page_may():
    async def work(desktop):
        await desktop.set_site("mail", {"a": 1})
        await desktop.seal_sites()
        post = ("curl", "-sS", "-X", "POST", "http://mail.test/post", "-d")
        for body in ('{"action":"set","state":{"a":2}}', '{"action":"reset"}', '{"state":{"a":2}}'):
            assert "the episode has begun" in await said(desktop, *post, body)
        for body in ("", "[]", "3", "{", '{"action":"set_current"}', "nul", "[" * 2000 + "]" * 2000):
            assert "error" in await said(desktop, *post, body), body
        deep = '{"action":"set_current","state":' + '{"a":' * 900 + "1" + "}" * 901
        assert "error" in await said(desktop, *post, deep)
        huge = f"import sys; sys.stdout.write('x' * {MAX_BODY + 1})"
        too_large = await said(desktop, "sh", "-c", f'python3 -c "{huge}" | {" ".join(post)} @-')
        assert "too large" in too_large.lower() or "exceeded" in too_large.lower()
        flood = (
            "import socket\nheld = []\n"
            f"for number in range({4 * MOST_CONNECTIONS}):\n"
            "    client = socket.create_connection(('127.0.0.1', 80)); client.send(b'GET / HT'); held.append(client)\n"
            "import time; time.sleep(3)\n"
        )
        flooding = asyncio.ensure_future(said(desktop, "python3", "-c", flood))
        await asyncio.sleep(1.0)
        assert (await desktop.site_state("mail"))["current_state"] == {"a": 1}
        assert (await desktop.screenshot()).shape == (240, 320, 3)
        await flooding
        assert "<title>Mail" in await said(desktop, "curl", "-sS", "--retry", "5", "http://mail.test/")

    played(work, SPEC)


def test_a_reset_takes_milliseconds_and_begins_anew():
    async def work(desktop):
        step = {
            "type": "site",
            "parameters": {"site": "mail", "seed": 5, "state": {"messages": {"t1": {"folder": "inbox"}}}},
        }
        await run_steps(desktop, [step])
        first = await desktop.site_state("mail")
        assert (
            first["initial_state"]["messages"]["t1"] == {"folder": "inbox"}
            and "$parameters" not in first["initial_state"]
        )
        await said(desktop, "curl", "-sS", "http://mail.test/post", "-d", '{"action":"set_current","state":{}}')
        await run_steps(desktop, [step])
        assert await desktop.site_state("mail") == first
        await run_steps(desktop, [{**step, "parameters": {"site": "mail", "seed": 6}}])
        assert json.dumps((await desktop.site_state("mail"))["initial_state"]) != json.dumps(first["initial_state"])

    played(work, SPEC)


def test_specs_that_cannot_have_sites_say_so():
    with pytest.raises(ConfigurationError, match="sites need a desktop in a sandbox"):
        make_desktop(replace(SPEC, sandbox="none"))

    async def start():
        await make_desktop(replace(SPEC, sites=("nowhere",))).start()

    with pytest.raises(ConfigurationError, match="there is no site 'nowhere'"):
        asyncio.run(start())
