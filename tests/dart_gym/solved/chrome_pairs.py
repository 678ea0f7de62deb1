"""Pairs of Chrome. Sites are stood in for by a server on the desktop, which Chrome is told to find under every name."""

from __future__ import annotations

import sqlite3
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dart_gym.tasks.setup.chrome_steps import HISTORY_URL
from tests.dart_gym.solved import media
from tests.dart_gym.solved.solved_pairs import (
    DESKTOP,
    HUB,
    IDLE,
    SolvedPair,
    click,
    download,
    judged,
    lines_in_terminal,
    press,
    rule,
    run,
    step,
    typed,
    until,
    vm_file,
)

CHROME = f"{HUB}chrome/"
PROFILE = "~/.config/google-chrome"
SERVER = b"""import http.server, os

class Site(http.server.SimpleHTTPRequestHandler):
    def end_headers(self):
        self.send_header("Set-Cookie", "session-id=1; Max-Age=9999999")
        super().end_headers()

    def do_GET(self):
        name = self.path.partition("?")[0].rpartition("/")[2]
        self.path = "/" + name if name.endswith(".html") else "/index.html"
        super().do_GET()

os.chdir("/home/user/.site")
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Site).serve_forever()
"""
INDEX = b"""<!DOCTYPE html><title>Cars</title><body><p>The start.</p></body>"""
FOUND = b"""<!DOCTYPE html><title>Cars</title><body><div class="location-info">Boston</div>
<div class="location-info">Logan</div><a class="rank">Number of Seats</a><input value="7 seats"></body>"""
AUTHOR = b"""<!DOCTYPE html><title>Author</title><p id="name">Yann LeCun</p><a id="cited" title="345074">cited</a>"""
EVERYWHERE = "--host-resolver-rules=MAP * 127.0.0.1:8000"


def chrome(*options: str) -> list[dict[str, Any]]:
    """The steps with which OSWorld's tasks start Chrome."""
    return [
        step("launch", command=["google-chrome", "--remote-debugging-port=1337", *options]),
        step("launch", command=["socat", "tcp-listen:9222,fork", "tcp:localhost:1337"]),
    ]


def site(*names: str) -> list[dict[str, Any]]:
    """Steps that start the sites, and wait until they answer."""
    return [
        download(**{f"/home/user/.site/{name}": f"{CHROME}{name}" for name in ("server.py", "index.html", *names)}),
        step("launch", command=["python3", "/home/user/.site/server.py"]),
        step("execute", command=["curl", "-sf", "http://127.0.0.1:8000"], until={"returncode": 0}),
    ]


SITE_FILES = {
    CHROME + name: content
    for name, content in {
        "server.py": SERVER, "index.html": INDEX, "found.html": FOUND, "author.html": AUTHOR,
    }.items()
}  # fmt: skip


def goes_to(url: str) -> list[dict[str, Any]]:
    """Keys that lead to an address."""
    return [*press("ctrl+l"), typed(f"{url}\n"), until(**IDLE)]


RESTARTED = [
    step("launch", command=["pkill", "chrome"]),
    step("launch", command=["google-chrome", "--remote-debugging-port=1337"]),
    step("sleep", seconds=3),
]
"""The postconfig with which Chrome writes down what it has been told."""

MONTH = datetime.now(UTC).strftime("%B").lower()
FOUND_PATH = (
    f"{MONTH}-weather/mens-clothing/shirts/Men_regular_size_t,Price_discount_range,Sleeve_length/"
    "L,50_PERCENT_%20off%20%26%20more,short-sleeve/found.html?locationName=Paris&q=nereida"
)
FOUND_URL = f"http://www.cars.example/{FOUND_PATH}"
ACTIVE = {"goto_prefix": "http://www."}


def of_active_tab(kind: str, **more: Any) -> dict[str, Any]:
    """A getter that looks at the tab in front."""
    return {"type": kind, **ACTIVE, **more}


CAMPS = b"""<!DOCTYPE html><title>Camps</title><button class="next-available">Next</button>
<p class="camp-sortable-column-header">Site</p><p class="camp-sortable-column-header">Loop</p>
<p class="camp-sortable-column-header">Sat 28</p>"""
SEARCH = b"""<!DOCTYPE html><title>Search</title><input id="hero-search-input">
<button class="nav-search-button" onclick="document.getElementById('found').hidden = false">Search</button>
<p id="found" hidden><a class="search-result-highlight--success" target="_blank" href="/camps.html">Diamond</a></p>"""
TLS_SERVER = b"""import http.server, os, ssl, subprocess
os.chdir("/home/user/.tls")
subprocess.run("openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=x -keyout key.pem -out certificate.pem".split())
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("certificate.pem", "key.pem")
server = http.server.ThreadingHTTPServer(("127.0.0.1", 8443), http.server.SimpleHTTPRequestHandler)
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""
COLUMN = "camp-sortable-column-header"
TLS_FILES = {
    f"{CHROME}camps.html": CAMPS, f"{CHROME}search.html": SEARCH, f"{CHROME}tls_server.py": TLS_SERVER,
}  # fmt: skip
# Its getter walks through recreation.gov by itself, and pauses for 42 s on its way.
RECREATION = SolvedPair(
    "chrome/recreation",
    judged(
        (
            "check_direct_json_object",
            {
                # Chrome shows the whole address of a page whose certificate nobody has signed.
                **{"type": "active_tab_html_parse", "goto_prefix": ""},
                **{"category": "class", "class_multiObject": {COLUMN: {"2": COLUMN}}},
            },
            {"type": "gotoRecreationPage_and_get_html_content", "selector": "class", "class": COLUMN, "order": "2"},
        ),
    ),
    goes_to("https://www.recreation.gov/camps.html"),
    [
        download(
            **{
                "/home/user/.tls/server.py": f"{CHROME}tls_server.py",
                "/home/user/.tls/index.html": f"{CHROME}search.html",
                "/home/user/.tls/camps.html": f"{CHROME}camps.html",
            }
        ),
        step("launch", command=["python3", "/home/user/.tls/server.py"]),
        step("execute", command=["curl", "-skf", "https://127.0.0.1:8443"], until={"returncode": 0}),
        *chrome("--host-resolver-rules=MAP * 127.0.0.1:8443", "--ignore-certificate-errors"),
        step("chrome_open_tabs", urls_to_open=["https://www.recreation.gov/"]),
    ],
    TLS_FILES,
    fresh=True,
    max_s=400.0,
)

PAGES = SolvedPair(
    "chrome/pages",
    judged(
        ("is_expected_active_tab", of_active_tab("active_tab_info"), rule(type="url", url=FOUND_URL)),
        (
            *("is_expected_active_tab_approximate", of_active_tab("active_url_from_accessTree")),
            rule(type="url", url=FOUND_URL.partition("?")[0]),
        ),
        (
            *("is_expected_url_pattern_match", of_active_tab("active_url_from_accessTree")),
            rule(expected=["mens-clothing/", "q=nereida$"]),
        ),
        ("is_expected_search_query", of_active_tab("active_tab_info"), rule(expect={"pattern": r"q=nereida(?:&|$)"})),
        (
            *("check_direct_json_object", of_active_tab("active_tab_url_parse", parse_keys=["locationName", "q"])),
            rule(expected={"locationName": "Paris", "q": "nereida"}),
        ),
        (
            "check_direct_json_object",
            of_active_tab("url_dashPart", partIndex=3, needDeleteId=False, returnType="json", key="time"),
            {
                "type": "rule_relativeTime",
                "rules": {
                    "relativeTime": {"from": "this month"},
                    "timezone": "UTC",
                    "expected": {"time": "{month}-weather"},
                },
            },
        ),
        (
            "check_direct_json_object",
            of_active_tab("url_path_parse", parse_keys=["Men_regular_size_t", "Price_discount_range"]),
            rule(
                expected={
                    **dict.fromkeys(("mens_clothing", "shirts", "short_sleeve"), True),
                    "Men_regular_size_t": "L",
                    "Price_discount_range": "50_PERCENT_ off & more",
                }
            ),
        ),
        (
            "check_direct_json_object",
            of_active_tab(
                "active_tab_html_parse",
                category="class",
                class_multiObject={"location-info": {"0": "from", "1": "to"}},
                class_singleObject={"rank": "rank"},
            ),
            rule(expected={"from": "Boston", "to": "Logan", "rank": "Number of Seats"}),
        ),
        (
            "check_direct_json_object",
            of_active_tab("active_tab_html_parse", category="input", inputObject={"/html/body/input": "seats"}),
            rule(expected={"seats": "7 seats"}),
        ),
        (
            *("is_expected_tabs", {"type": "open_tabs_info"}),
            rule(type="url", urls=["http://www.tripadvisor.com", FOUND_URL]),
        ),
    ),
    goes_to(FOUND_URL),
    [
        *site("found.html"),
        *chrome(EVERYWHERE),
        step("chrome_open_tabs", urls_to_open=["http://www.tripadvisor.com", "http://www.cars.example/start"]),
    ],
    SITE_FILES,
)

LOOKED_UP = SolvedPair(
    "chrome/looked-up",
    judged(
        (
            "literal_match",
            {
                "type": "content_from_vm_file",
                "path": f"{DESKTOP}/researchers.xlsx",
                "file_type": "xlsx",
                "file_content": "last_row",
            },
            {
                "type": "info_from_website",
                "url": "http://www.scholar.example/author.html",
                "infos": [
                    {"action": "inner_text", "selector": "#name"},
                    {"action": "attribute", "selector": "#cited", "attribute": "title"},
                ],
                "backups": ["not", "reached"],
            },
            {"type": "list"},
        ),
        (
            *("compare_pdfs", vm_file(f"{DESKTOP}/Author.pdf")),
            {"type": "pdf_from_url", "path": "http://www.scholar.example/author.html", "dest": "Author_gold.pdf"},
        ),
    ),
    lines_in_terminal(
        r"cd Desktop; printf 'Name,Cited\nAda,1\nYann LeCun,345074\n' > researchers.csv",
        "soffice --headless --convert-to xlsx researchers.csv > /dev/null",
        f"google-chrome --headless --user-data-dir=/tmp/printing --no-pdf-header-footer '{EVERYWHERE}' "
        "--print-to-pdf=Author.pdf http://www.scholar.example/author.html 2> /dev/null",
    ),
    [*site("author.html"), *chrome(EVERYWHERE)],
    SITE_FILES,
)


def history() -> bytes:
    """A browsing history without visits, as Chrome keeps it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "History")
        connection = sqlite3.connect(path)
        connection.executescript(HISTORY)
        connection.close()
        return path.read_bytes()


HISTORY = """
CREATE TABLE meta(key LONGVARCHAR NOT NULL UNIQUE PRIMARY KEY, value LONGVARCHAR);
INSERT INTO meta VALUES ('version', '70'), ('last_compatible_version', '16');
CREATE TABLE urls(id INTEGER PRIMARY KEY AUTOINCREMENT, url LONGVARCHAR, title LONGVARCHAR,
  visit_count INTEGER DEFAULT 0 NOT NULL, typed_count INTEGER DEFAULT 0 NOT NULL, last_visit_time INTEGER NOT NULL,
  hidden INTEGER DEFAULT 0 NOT NULL);
CREATE TABLE visits(id INTEGER PRIMARY KEY AUTOINCREMENT, url INTEGER NOT NULL, visit_time INTEGER NOT NULL,
  from_visit INTEGER, external_referrer_url TEXT, transition INTEGER DEFAULT 0 NOT NULL, segment_id INTEGER,
  visit_duration INTEGER DEFAULT 0 NOT NULL, incremented_omnibox_typed_score BOOLEAN DEFAULT FALSE NOT NULL,
  opener_visit INTEGER, originator_cache_guid TEXT, originator_visit_id INTEGER, originator_from_visit INTEGER,
  originator_opener_visit INTEGER, is_known_to_sync BOOLEAN DEFAULT FALSE NOT NULL,
  consider_for_ntp_most_visited BOOLEAN DEFAULT FALSE NOT NULL, visited_link_id INTEGER DEFAULT 0 NOT NULL,
  app_id TEXT);
"""

COOKIES = "file:/home/user/.config/google-chrome/Default/Cookies?immutable=1"
HAS_COOKIE = f"""python3 -c 'import sqlite3, sys
cookies = sqlite3.connect("{COOKIES}", uri=True)
sys.exit(not cookies.execute("SELECT 1 FROM cookies WHERE host_key LIKE \\"%amazon.com\\"").fetchall())'"""
"""Whether the cookie has been written down, which Chrome does every 30 seconds."""

CLEANED = SolvedPair(
    "chrome/cleaned",
    judged(
        (
            *("check_history_deleted", {"type": "history", "dest": "history.sqlite"}),
            rule(type="keywords", keywords=["youtube"]),
        ),
        (
            *("is_cookie_deleted", {"type": "cookie_data", "dest": "Cookies"}),
            rule(type="domains", domains=[".amazon.com"]),
        ),
        (
            *("check_enabled_experiments", {"type": "enabled_experiments"}),
            rule(type="names", names=["enable-parallel-downloading"]),
        ),
        postconfig=RESTARTED,
    ),
    [
        *goes_to("chrome://flags/#enable-parallel-downloading"),
        click(1222, 194),
        *press("down", "enter"),
        *goes_to("chrome://settings/clearBrowserData"),
        click(1038, 388),
        click(1112, 810),
        until(command=f"! {HAS_COOKIE}", timeout=60),
    ],
    [
        *site(),
        step(
            "update_browse_history",
            history=[
                {"url": f"https://www.youtube.com/{name}", "title": name, "visit_time_from_now_in_seconds": 3000}
                for name in "ab"
            ],
        ),
        *chrome(EVERYWHERE),
        step("chrome_open_tabs", urls_to_open=["http://www.amazon.com", "http://www.other.example"]),
        step("chrome_close_tabs", urls_to_close=["http://www.amazon.com"]),
        step("execute", command=HAS_COOKIE, shell=True, until={"returncode": 0}),
    ],
    {**SITE_FILES, HISTORY_URL: history},
)

MANIFEST = '{"manifest_version": 3, "name": "Hello Extensions", "version": "1.0", "description": "says hello"}'
UNPACKED = SolvedPair(
    "chrome/unpacked-extension",
    judged(
        ("is_in_list", {"type": "find_unpacked_extension_path"}, rule(expected=f"{DESKTOP}/helloExtension")),
        postconfig=RESTARTED,
    ),
    [
        *goes_to("chrome://extensions"),
        click(1894, 115),
        click(85, 170),
        *press("ctrl+l", when={"window": "Select the extension directory"}),
        typed(f"{DESKTOP}/helloExtension"),
        click(1472, 932),
        until(gone="Select the extension directory", idle=True),
    ],
    [
        download(**{f"{DESKTOP}/helloExtension.zip": f"{CHROME}helloExtension.zip"}),
        run(f"unzip {DESKTOP}/helloExtension.zip -d {DESKTOP}/ && rm {DESKTOP}/helloExtension.zip"),
        *chrome(),
    ],
    {f"{CHROME}helloExtension.zip": media.packed({"helloExtension/manifest.json": MANIFEST})},
)
# Extensions come from Chrome's store, which is a live site: its entry in Chrome's preferences is written by hand.
INSTALLED = SolvedPair(
    "chrome/installed-extension",
    judged(
        (
            *("is_expected_installed_extensions", {"type": "find_installed_extension_name"}),
            rule(expected=["Momentum", "Google Translate"]),
        ),
    ),
    lines_in_terminal(
        "cd .config/google-chrome/Default; pkill chrome; while pgrep -x chrome > /dev/null; do sleep 0.1; done",
        'jq \'.extensions.settings += {a: {manifest: {name: "Momentum"}}, b: {manifest: {name: "Google Translate"}}}\''
        " Preferences > new; mv new Preferences",
    ),
    chrome(),
)

PAIRS = [PAGES, RECREATION, LOOKED_UP, CLEANED, UNPACKED, INSTALLED]
