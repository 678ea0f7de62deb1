"""Faults of real processes: servers, clients and desktops are killed, and programs are missing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
from pathlib import Path

import numpy as np
import pytest
from serving import Place, ServeProcess, none_runs, small_desktop
from waiting import wait_for

from dart_gym.core.actions import Move, Wait
from dart_gym.core.errors import MissingDependencyError
from dart_gym.core.outcomes import EvaluationStatus, TerminalState
from dart_gym.envs.vector_env import DesktopVectorEnv
from dart_gym.tasks.catalog.registry import task_ids
from tests.helpers.parameters import slow_but

pytestmark = pytest.mark.process


@pytest.fixture
def place():
    place = Place()
    yield place
    place.remove()


async def phases(server: ServeProcess) -> list[str]:
    return [slot["phase"] for slot in (await server.client().status())["desktops"]]


# --- the server is killed


@pytest.mark.thorough
@pytest.mark.desktop
@pytest.mark.parametrize(
    "with_keepers", [pytest.param(False, id="alone", marks=pytest.mark.slow), pytest.param(True, id="with its keepers")]
)
async def test_a_server_killed_in_a_step_and_started_again(place, with_keepers):
    async with ServeProcess(place, "--desktops", "2") as old:
        async with old.client().session() as session:
            assert (await session.reset(small_desktop(), seed=1)).terminal is None
            step = asyncio.create_task(session.step(Wait(60)))
            await wait_for(lambda: _in_phase(old, "step"))
            processes, directories = old.processes(), place.desktops()
            assert directories and any(name == "Xvfb" for _, name in processes.values())
            keepers = _keepers(processes) if with_keepers else []
            for keeper in keepers:
                os.kill(keeper, signal.SIGSTOP)  # else they would clean up as soon as their server is gone
            await old.kill()
            for keeper in keepers:
                os.kill(keeper, signal.SIGKILL)
            async with ServeProcess(place, "--desktops", "2") as new:
                result = await step
                assert result.terminal is TerminalState.ENV_ERROR
                assert result.evaluation.status is EvaluationStatus.ENVIRONMENT_ERROR
                assert result.evaluation.score is None and "session" in result.evaluation.detail
                assert not set(directories) & set(place.desktops())  # removed at the start
                assert none_runs(processes)
                again = await session.reset(small_desktop(), seed=2)
                assert again.terminal is None and again.info["seed"] == 2
                assert (await session.step(Move(5, 5))).step_index == 1
                assert ("left behind by a process that is dead" in new.log()) == with_keepers


def _keepers(processes: dict[int, tuple[int | None, str]]) -> list[int]:
    """Pids of the processes that stand between desktops and their server, and of their parent."""
    return [pid for pid, (_, name) in processes.items() if name.startswith(("python", "desktop-keeper"))]


async def _in_phase(server: ServeProcess, phase: str) -> bool:
    return phase in await phases(server)


def _making(server: ServeProcess) -> object:
    return server.place.desktops()


def _laid_out(server: ServeProcess) -> object:
    return list(server.place.path.glob("dart-gym-*/*/guest.sock"))


def _display(server: ServeProcess) -> object:
    return server.named("Xvfb")


@pytest.mark.thorough
@pytest.mark.desktop
@pytest.mark.parametrize("moment", [_making, _laid_out, _display], ids=["directory", "sandbox", "display"])
@pytest.mark.parametrize("sandbox", slow_but(["bwrap"], ["bwrap", "none"]))
async def test_a_server_killed_while_it_boots_a_desktop(place, moment, sandbox):
    async with ServeProcess(place, "--isolation", sandbox) as old:
        reset = asyncio.create_task(_reset_until_killed(old))
        await wait_for(lambda: moment(old))
        processes = old.processes()
        await old.kill()
        reset.cancel()  # before it asks the next server
        await asyncio.wait({reset})
        async with ServeProcess(place):
            await wait_for(lambda: none_runs(processes))
            assert place.desktops() == []


async def _reset_until_killed(server: ServeProcess) -> None:
    async with server.client().session() as session:
        await session.reset(small_desktop(), seed=0)


@pytest.mark.thorough
@pytest.mark.desktop
async def test_programs_whose_supervisor_was_killed_too_are_found_by_the_next_server(place):
    async with ServeProcess(place, "--isolation", "none", "--warm", "0") as old, old.client().session() as session:
        assert (await session.reset(small_desktop(), seed=0)).terminal is None
        (display,) = old.named("Xvfb")
        (number,) = place.path.glob("dart-gym-*/*/shared/log/display")
        socket_file = Path("/tmp/.X11-unix") / f"X{number.read_text()}"
        processes = old.processes()
        others = {pid: process for pid, process in processes.items() if pid != display}
        for pid in others:
            os.kill(pid, signal.SIGSTOP)  # whoever ends the display otherwise cannot
        await old.kill()
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await wait_for(lambda: none_runs(others))
        assert not none_runs({display: processes[display]}) and socket_file.exists()  # so there is something to find
        async with ServeProcess(place):
            assert none_runs(processes) and place.desktops() == []
            assert not socket_file.exists()


@pytest.mark.thorough
@pytest.mark.desktop
async def test_a_living_server_is_not_touched_by_another_one(place):
    apis = ("--osworld-api", str(place.path / "apis"))
    async with ServeProcess(place, "--warm", "0", *apis) as first, first.client().session() as session:
        info = (await session.reset(small_desktop(), seed=0)).info
        api = Path(info["osworld_api"]["url"].removeprefix("http+unix://"))
        before, directories = first.processes(), place.desktops()
        deserted = api.with_name("1073741824-1.sock")  # no process can have this number
        _leave_socket(deserted)
        async with ServeProcess(place, *apis, url=f"ws+unix://{place.path}/second.sock"):
            assert not deserted.exists() and api.exists()
            assert set(directories) <= set(place.desktops())
        assert before.keys() <= first.processes().keys()
        assert (await session.step(Move(5, 5))).step_index == 1


def _leave_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


# --- the client is killed

CLIENT = """
import asyncio, sys
from dart_gym.core.actions import Wait
from dart_gym.cluster.client.cluster_client import ClusterClient

async def main():
    async with ClusterClient(sys.argv[1]).session() as session:
        await session.reset("fake/two-steps", seed=0)
        print("ready", flush=True)
        await session.step(Wait(float(sys.argv[2])))
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.thorough
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hanging"])
async def test_the_slots_of_a_dead_client_are_free_within_heartbeat_and_grace(place, signum):
    async with ServeProcess(place, "--desktops", "1", "--heartbeat", "0.3", "--grace", "0.5") as server:
        client = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CLIENT, server.url, "0", stdout=asyncio.subprocess.PIPE
        )
        try:
            assert await client.stdout.readline() == b"ready\n"
            client.send_signal(signum)
            async with server.client().session() as session:  # waits for the only slot
                result = await session.reset("fake/two-steps", seed=0, deadline_s=20.0)
                assert result.terminal is None and 0.0 < result.timings["queue"] < 10.0
        finally:
            with contextlib.suppress(ProcessLookupError):
                client.kill()
            await client.wait()


# --- a desktop is killed


@pytest.mark.thorough
@pytest.mark.desktop
@pytest.mark.parametrize("program", slow_but(["Xvfb"], ["Xvfb", "bwrap"]))
async def test_one_of_eight_desktops_is_killed_by_the_host_in_a_step(place, program):
    async with ServeProcess(place, "--desktops", "8", "--warm", "0") as server:
        envs = DesktopVectorEnv(8, task_ids("dialogs")[0], url=server.url)
        tasks = [small_desktop(f"desktop-{i}") for i in range(8)]
        try:
            _, infos = await asyncio.to_thread(envs.reset, seed=0, options={"tasks": tasks})
            assert not infos["env_fault"].any(), infos["action_error"]
            before = server.processes()
            step = asyncio.create_task(asyncio.to_thread(envs.step, [Wait(2.0)] * 8))
            await wait_for(lambda: _all_in_phase(server, "step"))
            os.kill(server.named(program)[3], signal.SIGKILL)
            _, rewards, terminated, ended, infos = await step
            (broken,) = np.flatnonzero(ended)  # an error of the environment: no program of the desktop sent the signal
            assert infos["env_fault"].tolist() == ended.tolist() and not terminated.any() and not rewards.any()
            assert infos["step_index"][~ended].tolist() == [1] * 7
            await asyncio.to_thread(envs.reset, options={"tasks": tasks, "reset_mask": ended})
            observations, _, _, truncated, infos = await asyncio.to_thread(envs.step, [Move(20, 20)] * 8)
            assert not truncated.any()
            assert infos["step_index"].tolist() == [1 if i == broken else 2 for i in range(8)]
            assert all(np.ptp(frame) > 0 for frame in observations["screenshot"])  # no black screens of lost desktops
            after = server.processes()
            assert len(set(before) & set(after)) >= len(before) * 7 // 8  # the other seven still run
        finally:
            await asyncio.to_thread(envs.close)


async def _all_in_phase(server: ServeProcess, phase: str) -> bool:
    return set(await phases(server)) == {phase}


# --- programs are missing

PROGRAMS = ("Xvfb", "openbox", "dbus-daemon", "xkbcomp", "bwrap")


@pytest.mark.desktop
@pytest.mark.parametrize(
    ("missing", "message"),
    [("Xvfb", "apt-get install xvfb"), ("bwrap", "apt-get install bubblewrap .or choose --isolation none.")],
)
async def test_a_server_without_a_program_says_so_and_serves_others(place, missing, message):
    programs = place.path / "programs"
    programs.mkdir()
    for name in set(PROGRAMS) - {missing}:
        (programs / name).symlink_to(shutil.which(name))
    async with ServeProcess(place, "--desktops", "2", env={"PATH": str(programs)}) as server:
        async with server.client().session() as lucky, server.client().session() as unlucky:
            assert (await lucky.reset("fake/two-steps", seed=0)).terminal is None
            for _ in range(2):
                with pytest.raises(MissingDependencyError, match=message):
                    await unlucky.reset(small_desktop(), seed=0)
            assert (await lucky.step(await lucky.oracle())).terminal is None
            assert (await unlucky.reset("fake/two-steps", seed=0)).terminal is None
        assert place.desktops() == []
