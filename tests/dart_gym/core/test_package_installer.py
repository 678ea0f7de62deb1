"""Why an installation failed: the index's own answer, not what pip makes of it."""

from __future__ import annotations

import sys

import pytest

from dart_gym.core.package_installer import pip_install, why_pip_failed
from scripts.failures.situations import Situation
from scripts.failures.stub_server import Protocol, stub

NONE = "ERROR: Could not find a version that satisfies the requirement a==1 (from versions: none)\nERROR: No matching"
LOG = "2026-01-01T00:00:00,001 Could not fetch URL http://h/simple/a/: {} - skipping\n"


@pytest.mark.parametrize(
    ("said", "logged", "why"),
    [
        (NONE, LOG.format("401 Client Error: Unauthorized for url: http://h/simple/a/"), "answers 401 Client Error"),
        (NONE, LOG.format("HTTPConnectionPool: (Caused by ResponseError('too many 500 errors'))"), "too many 500"),
        (NONE, "", "knows no such package: is the address"),
        ("WARNING: Skipping page http://h/a/ because the GET request got Content-Type: application/json. The only", "",
         "is no package index, it sends application/json"),
        ("WARNING: Retrying (x) after connection broken by 'NewConnectionError(refused)': /simple/a/\n" + NONE, "",
         "cannot be reached ('NewConnectionError(refused)')"),
        ("noise\nERROR: [Errno 28] No space left on device\nmore", "", "ERROR: [Errno 28] No space"),
        ("only words", "", "only words"),
        ("", "", "it says nothing"),
    ],
)  # fmt: skip
def test_the_reason_in_one_line(said, logged, why):
    found = why_pip_failed(said, logged)
    assert why in found and "\n" not in found


@pytest.mark.process
@pytest.mark.parametrize(
    ("situation", "why"),
    [
        (Situation.UNAUTHORIZED, "401 Client Error"),
        (Situation.TOO_MANY, "429 Client Error"),
        (Situation.SERVER_ERROR, "500"),
        (Situation.HTML, "is the address of the package index right"),
    ],
)
def test_what_the_index_answers_is_said(situation, why, tmp_path, monkeypatch):
    with stub(Protocol.HTTP, situation) as server:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.port}/simple")
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        said = pip_install(sys.executable, ["--target", str(tmp_path), "--no-deps", "nothing-of-that-name"], 1.0)
    assert why in said
