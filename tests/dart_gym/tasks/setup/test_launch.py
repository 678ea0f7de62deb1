"""The steps `launch` and `sleep` as in OSWorld: programs are started, and a window that does not come is no error."""

from __future__ import annotations

import time

import pytest

from dart_gym.core.errors import TaskError
from dart_gym.core.operation_deadline import OperationDeadline, seconds_left
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.fake_desktop import FakeDesktop
from dart_gym.tasks.setup import launch_step
from dart_gym.tasks.setup.launch_step import expected_window
from dart_gym.tasks.setup.setup_runner import run_steps


def step(kind: str, **parameters):
    return {"type": kind, "parameters": parameters}


SHOWN = (
    ["libreoffice", "--calc", "/home/user/a.xlsx"],
    ["/usr/bin/soffice", "--norestore", "a.odt"],
    ["lowriter", "a.docx"],
    ["gimp", "/home/user/Desktop/computer.png"],
    ["vlc", "--repeat", "a.mp4"],
    ["google-chrome", "--remote-debugging-port=1337"],
    "VLC_VERBOSE=-1 vlc --no-audio -v 'a b.mp4'",
    ["/usr/bin/thunderbird"],
    ["vlc", "-I", "qt"],
    ["gimp", "a -i b.png"],
    "cd '/home/user/my files' && libreoffice 'a -h b.odt'",
    "nohup gimp a.png > /dev/null 2>&1 &",
    "env LANG=C A='x y' \"/usr/bin/soffice\" --calc",
    "sleep 1; (vlc a.mp4 &)",
    ["env", "A=1", "gimp"],
    ["bash", "-c", "pkill gimp; gimp a.png & echo $!"],
)
NOT_SHOWN = (
    ["soffice", "--headless", "--convert-to", "pdf", "a.docx"],
    ["libreoffice", "--convert-to", "csv:Text - txt - csv (StarCalc):44,34,UTF-8", "--outdir", "/home/user", "a.xlsx"],
    ["lowriter", "--cat", "a.docx"],
    ["libreoffice", "--version"],
    ["gimp", "-i", "-b", "(gimp-quit 0)"],
    ["gimp", "--no-interface"],
    ["vlc", "-I", "dummy", "a.mp4"],
    ["vlc", "--intf=rc", "a.mp4"],
    ["google-chrome", "--headless=new", "--dump-dom", "a.html"],
    ["thunderbird", "--help"],
    "vlc --intf dummy a.mp4",
    ["socat", "tcp-listen:9222,fork", "tcp:localhost:1337"],
    ["no-such-program"],
    "echo gimp; ls gimp",
    "pkill vlc # and then vlc",
    ["sh", "-c", "soffice --headless --convert-to pdf 'a b.docx' && echo done"],
    ["bash", "-c"],
    ["cat", "gimp"],
    "vlc 'an open quote",
    "(",
    [],
)


@pytest.mark.parametrize("command", SHOWN, ids=str)
def test_a_window_is_expected_of_programs_that_show_one(command):
    assert expected_window({"command": command, "shell": isinstance(command, str)})


def test_a_list_may_hold_one_shell_line_and_what_is_no_command_shows_nothing():
    assert expected_window({"command": ["VLC_VERBOSE=-1 vlc --no-audio"], "shell": "true"})
    assert not any(expected_window({"command": command}) for command in ([], 3, None, [3]))


@pytest.mark.parametrize("command", NOT_SHOWN, ids=str)
def test_no_window_is_expected_where_an_argument_rules_it_out(command):
    assert not expected_window({"command": command, "shell": isinstance(command, str)})


async def test_a_pause_may_take_as_long_as_the_deadline_allows():
    started = time.monotonic()
    async with OperationDeadline(30.0):
        assert 29 < seconds_left() <= 30
        await run_steps(FakeDesktop(DesktopSpec(kind="fake")), [step("sleep", seconds=0.01)])
        with pytest.raises(TaskError, match=r"\(sleep\).*400.*deadline"):
            await run_steps(FakeDesktop(DesktopSpec(kind="fake")), [step("sleep", seconds="400")])
        async with OperationDeadline(400.0):  # of a part, which does not move the whole's
            assert seconds_left() <= 30
    assert time.monotonic() - started < 5
    assert seconds_left() == float("inf")


async def test_a_pause_in_an_evaluation_is_kept_however_long_the_steps_before_have_taken(tmp_path):
    """Or an agent whose programs take their time would have its episode left out."""
    desktop, pause = FakeDesktop(DesktopSpec(kind="fake")), [step("sleep", seconds=0.4)]
    async with OperationDeadline(0.2, movable=True) as deadline:
        await run_steps(desktop, pause, cache=tmp_path)
    assert deadline.extended > 0.2
    async with OperationDeadline(0.2, movable=True):
        with pytest.raises(TaskError, match="deadline"):
            await run_steps(desktop, pause)  # of a reset


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "soon", None])
async def test_a_pause_must_be_a_number_of_seconds(seconds):
    with pytest.raises(TaskError, match="'seconds'"):
        await run_steps(FakeDesktop(DesktopSpec(kind="fake")), [step("sleep", seconds=seconds)])


@pytest.mark.thorough
@pytest.mark.desktop
@pytest.mark.timeout(180)
async def test_programs_that_show_no_window_do_not_hold_up_the_reset(start_desktop, until, tmp_path):
    desktop = await start_desktop(profile="osworld", width=1280, height=800)

    async def seconds(*steps, **options):
        started = time.monotonic()
        await run_steps(desktop, list(steps), **options)
        return time.monotonic() - started

    await desktop.write_file("/home/user/a.csv", b"a,b\n1,2\n")
    assert await seconds(step("launch", command=["soffice", "--headless", "--convert-to", "xlsx", "a.csv"])) < 5
    await until(lambda: _exists(desktop, "/home/user/a.xlsx"))
    assert await seconds(step("launch", command="vlc --version > ~/v.txt", shell="true")) < 5
    assert await seconds(step("launch", command=["thunderbird", "--version"])) < 5
    # one of which a window may be expected, and which ends at once
    assert await seconds(step("launch", command=["gimp", "--no-such-option"])) < launch_step.FIRST_S / 2
    await run_steps(desktop, [step("launch", command=["/home/user/gone"])], cache=tmp_path)  # OSWorld's score counts


@pytest.mark.desktop
@pytest.mark.timeout(180)
async def test_a_second_instance_hands_over_to_the_first(start_desktop, until):
    desktop = await start_desktop(profile="osworld", width=1280, height=800)
    for name in ("first", "second"):
        await desktop.write_file(f"/home/user/{name}.html", f"<title>{name}</title>{name}".encode())
        started = time.monotonic()
        await run_steps(desktop, [step("launch", command=["google-chrome", f"/home/user/{name}.html"])])
    assert time.monotonic() - started < launch_step.SECOND_S + launch_step.SETTLED_S + 5
    titles = (await desktop.execute(["wmctrl", "-l"])).stdout.decode().splitlines()
    assert len(titles) == 1 and "second - Google Chrome" in titles[0]  # a tab of the same window


async def _exists(desktop, path: str) -> bool:
    return (await desktop.execute(["test", "-s", path])).returncode == 0
