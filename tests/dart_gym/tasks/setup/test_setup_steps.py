"""OSWorld's set-up steps on real desktops, and what they make of wrong parameters."""

from __future__ import annotations

import sqlite3
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from waiting import wait_for

from dart_gym.core.errors import MissingDependencyError, TaskError
from dart_gym.core.operation_deadline import OperationDeadline
from dart_gym.core.outcomes import TerminalState
from dart_gym.desktops.applications.devtools import Browser
from dart_gym.desktops.base.desktop import CommandResult, DesktopSpec
from dart_gym.desktops.factory import make_desktop
from dart_gym.tasks.evaluation.evaluator import evaluate
from dart_gym.tasks.screen.windows import Window, geometry, list_windows, matching, parse_windows
from dart_gym.tasks.setup import chrome_steps
from dart_gym.tasks.setup.chrome_steps import HISTORY_URL, same_page, write_visits
from dart_gym.tasks.setup.command_steps import reached
from dart_gym.tasks.setup.download_cache import DownloadCache
from dart_gym.tasks.setup.file_steps import shows
from dart_gym.tasks.setup.launch_step import drawn_pixels
from dart_gym.tasks.setup.setup_runner import run_steps


def step(kind: str, **parameters):
    return {"type": kind, "parameters": parameters}


# --- pure parts


@pytest.mark.parametrize(
    ("until", "fulfilled"),
    [
        ({"returncode": 1}, True),
        ({"returncode": 0}, False),
        ({"stdout": "ut"}, True),
        ({"stderr": "x"}, False),
        ({"returncode": 0, "stderr": "er"}, True),  # any one is enough
    ],
)
def test_until(until, fulfilled):
    assert reached(until, CommandResult(1, b"out", b"err")) is fulfilled


def test_windows_are_read_and_chosen_as_wmctrl_does():
    windows = parse_windows(  # as it prints: the host is to the right of its column
        "0x01200003  0 mousepad.Mousepad               vm *Untitled 1 - Mousepad\n"
        "0x01400003 -1 chrome (/home/user/x).Chrome  N/A New  Tab - Google Chrome\n"
        "0x01600003  0 a.b                           vm \n"
        "nonsense\n"
    )
    assert windows == [
        Window(0x1200003, "mousepad.Mousepad", "*Untitled 1 - Mousepad"),
        Window(0x1400003, "chrome (/home/user/x).Chrome", "New  Tab - Google Chrome"),
        Window(0x1600003, "a.b", ""),
    ]
    assert matching(windows, "new  tab").id == 0x1400003
    assert matching(windows, "new  tab", strict=True) is None
    assert matching(windows, "New  Tab - Google Chrome", strict=True).id == 0x1400003
    assert matching(windows, "MousePad", by_class=True).id == 0x1200003
    assert matching(windows, "mousepad", strict=True, by_class=True) is None


def test_a_window_shows_a_file_with_or_without_its_ending():
    assert shows("Report.xlsx - LibreOffice Calc", "/home/user/Report.xlsx")
    assert shows("Report", "/home/user/Report.xlsx") and not shows("Other", "/home/user/Report.xlsx")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("https://www.a.org/", "a.org", True),
        ("http://a.org/b/", "https://a.org/b", True),
        ("http://a.org/b", "http://a.org/c", False),
        ("http://a.org/b?x=1", "http://a.org/b?x=2", False),
    ],
)
def test_pages_are_compared_by_what_matters(one, other, same):
    assert same_page(one, other) is same


HISTORY_TABLES = """
CREATE TABLE urls (id INTEGER PRIMARY KEY, url, title, visit_count, typed_count, last_visit_time, hidden);
CREATE TABLE visits (id INTEGER PRIMARY KEY, url, visit_time, from_visit, transition, segment_id, visit_duration);
"""


def history_file(path: Path) -> Path:
    with sqlite3.connect(path) as database:
        database.executescript(HISTORY_TABLES)
    database.close()
    return path


def test_visits_are_written_in_chromes_time(tmp_path):
    database = history_file(tmp_path / "History")
    visit = {"url": "https://a.org", "title": "A", "visit_time_from_now_in_seconds": 60}
    write_visits(database, [visit, visit], datetime(1601, 1, 1, 0, 2, tzinfo=UTC))
    connection = sqlite3.connect(database)
    assert (
        connection.execute("SELECT url, title, last_visit_time FROM urls").fetchall()
        == [("https://a.org", "A", 60_000_000)] * 2
    )
    assert connection.execute("SELECT url, visit_time FROM visits").fetchall() == [(1, 60_000_000), (2, 60_000_000)]
    connection.close()


# --- on a drawn desktop


@pytest.fixture
async def fake():
    desktop = make_desktop(DesktopSpec(kind="fake", width=200, height=100))
    await desktop.start()
    yield desktop
    await desktop.stop()


@pytest.fixture
def cache(tmp_path) -> DownloadCache:
    return DownloadCache(tmp_path / "cache", offline=True)


def stored(cache: DownloadCache, url: str, content: bytes) -> str:
    source = cache.directory.parent / "source"
    source.write_bytes(content)
    cache.add(url, source)
    return url


async def test_downloads_come_from_the_cache(fake, cache):
    url = stored(cache, "https://example.org/a.txt", b"hub")
    files = [{"url": url, "path": "/home/user/a.txt"}, {"url": url, "path": "~/b.txt"}]
    await run_steps(fake, [step("download", files=files)], downloads=cache)
    assert [await fake.read_file(f"/home/user/{name}.txt") for name in "ab"] == [b"hub", b"hub"]


async def test_a_browsing_history_is_written_where_the_browser_looks(fake, cache, tmp_path):
    stored(cache, HISTORY_URL, history_file(tmp_path / "empty").read_bytes())
    visits = [{"url": "https://a.org", "title": "A", "visit_time_from_now_in_seconds": 3600}]
    await run_steps(fake, [step("update_browse_history", history=visits)], downloads=cache)
    (tmp_path / "read").write_bytes(await fake.read_file(chrome_steps.HISTORY_PATH))
    connection = sqlite3.connect(tmp_path / "read")
    assert connection.execute("SELECT title FROM urls").fetchall() == [("A",)]
    connection.close()


async def test_uploads_need_a_directory_that_the_operator_named(fake, tmp_path, monkeypatch):
    (tmp_path / "up").mkdir()
    (tmp_path / "up/a").write_text("a")
    (tmp_path / "secret").write_text("s")

    async def upload(name):
        await run_steps(fake, [step("upload_file", files=[{"local_path": name, "path": "/home/user/x"}])])

    with pytest.raises(TaskError, match="DART_GYM_UPLOADS"):
        await upload("a")
    monkeypatch.setenv("DART_GYM_UPLOADS", str(tmp_path / "up"))
    await upload("a")
    assert await fake.read_file("/home/user/x") == b"a"
    for name in ("../secret", str(tmp_path / "secret")):
        with pytest.raises(TaskError, match="is not in"):
            await upload(name)
    with pytest.raises(TaskError, match="there is no file"):
        await upload("b")


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (step("download", files="x"), "'files' must be a list"),
        (step("download", files=[{"url": "https://a.org/x"}]), "lacks the parameter 'path'"),
        (step("download", files=[{"url": "https://a.org/x", "path": "/x"}]), "not in the download cache"),
        (step("download", files=[{"url": "file:///etc/passwd", "path": "/x"}]), "no http address"),
        (step("execute", command=["nothing"]), "cannot run 'nothing'"),
        (step("execute", command="a 'b"), "cannot be split"),
        (step("execute", command=["a"], until={"rc": 0}), "until"),
        (step("execute_with_verification", command="a", shell=True, verification={"x": 1}), "verification"),
        (step("open", path=""), "non-empty text"),
        (step("chrome_open_tabs", urls_to_open="https://a.org"), "list of addresses"),
        (step("update_browse_history", history=[]), "not in the download cache"),
        (step("login", platform="googledrive"), "not supported here; needs an account"),
        (step("tidy_desktop"), "not supported here; supported: activate_window"),
    ],
)
async def test_a_bad_step_is_named_with_its_cause(fake, cache, bad, reason):
    with pytest.raises(TaskError, match=f"set-up step 1 of 1 \\({bad['type']}\\).*{reason}"):
        await run_steps(fake, [bad], downloads=cache)


async def test_a_desktop_without_wmctrl_says_what_to_install(fake):
    with pytest.raises(MissingDependencyError, match="wmctrl"):
        await run_steps(fake, [step("activate_window", window_name="a")])


# --- on a real one


@pytest.fixture
async def desktop():
    real = make_desktop(DesktopSpec(width=800, height=600, profile="osworld"))
    await real.start()
    yield real
    await real.stop()


PAGE_SERVER = ["python3", "-m", "http.server", "--bind", "127.0.0.1", "8000", "--directory", "/home/user/pages"]


@pytest.mark.thorough
@pytest.mark.desktop
async def test_commands_files_and_windows(desktop, tmp_path):
    await run_steps(
        desktop,
        [
            step("execute", command="echo {SCREEN_WIDTH_HALF} {CLIENT_PASSWORD} > ~/a.txt", shell="true"),
            step("execute", command=["rm", "/nothing"]),  # its status is nobody's business
            step("launch", command="sleep 0.5; touch ~/late", shell=True),
            step("execute", command="ls ~/late", shell=True, until={"returncode": 0}),
            step("write_file", path="~/Notes.txt", text="hello"),
            step("open", path="$HOME/Notes.txt"),
            step("launch", command=["zenity", "--info", "--title=One", "--text=1"]),
            step("activate_window", window_name="One", strict=True),
            step("activate_window", window_name="notes"),
            step(
                "execute_with_verification",
                command="(sleep 0.3; zenity --info --title=Two --text=2) > /dev/null 2>&1 &",
                shell=True,
                verification={"window_exists": "Two"},
            ),
            step("close_window", window_name="Two", strict=True),
        ],
    )
    assert await desktop.read_file("a.txt") == b"400 password\n"

    async def active_window() -> bytes:  # once the one that was asked to close is gone
        name = (await desktop.execute(["xdotool", "getactivewindow", "getwindowname"])).stdout
        return b"" if b"Two" in name else name

    active = await wait_for(active_window)
    assert b"Notes" in active or b"One" in active
    for missing, reason in (
        (step("open", path="/home/user/none.txt"), "there is no /home/user/none.txt"),
        (step("open", path="no-such-program"), "cannot open 'no-such-program'"),
        (step("launch", command=["no-such-program"]), "cannot start 'no-such-program'"),
        (step("change_wallpaper", path="/none.png"), "there is no /none.png"),
    ):
        with pytest.raises(TaskError, match=reason):
            await run_steps(desktop, [missing])
    await run_steps(desktop, [step("activate_window", window_name="no such")], cache=tmp_path)  # OSWorld's score counts
    await run_steps(desktop, [step("change_wallpaper", path="/home/user/Notes.txt")])
    read = await desktop.execute(["gsettings", "get", "org.gnome.desktop.background", "picture-uri"])
    assert read.stdout == b"'file:///home/user/Notes.txt'\n"


WRITES_LATE = """import time, tkinter
window = tkinter.Tk(className="Late")
def closed():
    window.destroy()
    until = time.process_time() + 1.5  # a slow machine
    while time.process_time() < until:
        pass
    open("/home/user/kept", "w").write("settings")
window.protocol("WM_DELETE_WINDOW", closed)
window.mainloop()
"""


@pytest.mark.desktop
async def test_a_window_is_closed_once_its_program_has_written_what_it_keeps(desktop, tmp_path):
    await desktop.write_file("/home/user/late.py", WRITES_LATE.encode())
    close = step("close_window", window_name="late.Late", strict=True, by_class=True)
    await run_steps(desktop, [step("launch", command=["python3", "/home/user/late.py"])])
    await run_steps(desktop, [step("activate_window", window_name="late.Late", strict=True, by_class=True)])
    async with OperationDeadline(60.0, movable=True):  # an evaluation, which a busy machine may delay
        await run_steps(desktop, [close], cache=tmp_path)
    assert await desktop.read_file("/home/user/kept") == b"settings"
    started = time.monotonic()
    await run_steps(desktop, [close], cache=tmp_path)
    assert time.monotonic() - started < 5  # there is none any more, which an evaluation does not mind


@pytest.mark.desktop
async def test_a_window_that_never_comes_is_an_error_within_its_time(desktop, monkeypatch):
    monkeypatch.setattr("dart_gym.tasks.setup.window_steps.WINDOW_TIMEOUT_S", 0.3)
    with pytest.raises(TaskError, match="no window titled 'None' appeared within 0.3 s .windows: none"):
        await run_steps(desktop, [step("activate_window", window_name="None")])


@pytest.mark.desktop
async def test_tabs_are_opened_and_closed_as_osworld_does(desktop):
    for name in "ab":
        await desktop.write_file(f"/home/user/pages/{name}.html", f"<title>{name}</title>".encode())
    urls = [f"http://localhost:8000/{name}.html" for name in "ab"]
    await run_steps(
        desktop,
        [
            step("launch", command=PAGE_SERVER),
            step("launch", command=["google-chrome", "--remote-debugging-port=1337"]),
            step("launch", command=["socat", "tcp-listen:9222,fork", "tcp:localhost:1337"]),
            step("chrome_open_tabs", urls_to_open=urls),
        ],
    )
    (chrome_window,) = [window for window in await list_windows(desktop) if "Chrom" in window.title]
    place = await geometry(desktop, chrome_window.id)
    assert (
        drawn_pixels(await desktop.screenshot(), place) > 1500 > drawn_pixels(np.zeros((600, 800, 3), np.uint8), place)
    )
    browser = Browser(await desktop.open_port(1337), 1337)
    assert [page["url"] for page in await browser.pages()] == urls[::-1]
    await run_steps(desktop, [step("chrome_close_tabs", urls_to_close=["localhost:8000/a.html", "http://not.open"])])
    assert [page["url"] for page in await browser.pages()] == urls[1:]
    with pytest.raises(TaskError, match="tab 1 of 1.*ERR_"):
        await run_steps(desktop, [step("chrome_open_tabs", urls_to_open=["http://no.such.host.invalid/"])])
    await run_steps(desktop, [step("launch", command=["pkill", "chrome"])])
    assert (await desktop.execute(["pgrep", "-x", "chrome"])).returncode == 1
    assert not any("Chrom" in window.title for window in await list_windows(desktop))


@pytest.mark.desktop
async def test_what_the_keys_of_an_evaluation_have_begun_is_waited_for(start_desktop):
    """As LibreOffice after Ctrl+S on a busy machine: it works, and the file is there in the end."""
    desktop = await start_desktop()
    work = "(i=0; while [ $i -lt 700000 ]; do i=$((i+1)); done; echo word > saved) > /dev/null 2>&1 &"
    save = {"type": "execute", "parameters": {"command": f"{work} : pyautogui.hotkey", "shell": True}}
    evaluator = {
        "func": "exact_match",
        "result": {"type": "vm_command_line", "command": "cat saved", "shell": True},
        "expected": {"type": "rule", "rules": {"expected": "word\n"}},
    }
    assert (await evaluate(desktop, evaluator, TerminalState.DONE)).score == 0.0
    assert (await evaluate(desktop, {**evaluator, "postconfig": [save]}, TerminalState.DONE)).score == 1.0
