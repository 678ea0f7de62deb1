"""docs/reference/protocol.md says what the module does: its tables of operations, codes, codecs and limits."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from dart_gym.cluster.server import access_tokens, cluster_server, session_registry
from dart_gym.cluster.wire import frames
from dart_gym.cluster.wire.frames import CLOSE_CODES, ErrorCode, Hello, Reply, Request, Welcome
from dart_gym.core.outcomes import EvaluationStatus, TerminalState

PAGE = (Path(__file__).parents[4] / "docs" / "reference" / "protocol.md").read_text()


def table(header: str) -> dict[str, list[str]]:
    """The rows of the table with this header row, by their first cell."""
    lines = PAGE[PAGE.index(header) :].splitlines()[2:]
    rows = [re.split(r" ?\| ?", line.strip("|")) for line in lines[: lines.index("")]]
    return {row[0].strip(" `"): [cell.strip() for cell in row[1:]] for row in rows}


def test_the_operations_are_those_of_the_module():
    assert set(table("| `op` | `args` | `result` |")) == set(frames.OPERATIONS)


def test_the_codes_and_their_close_codes_are_those_of_the_module():
    rows = table("| code | close code | |")
    assert set(rows) == set(ErrorCode)
    assert {code: row[0] for code, row in rows.items()} == {
        code: str(CLOSE_CODES[code]) if code in CLOSE_CODES else "" for code in ErrorCode
    }


def test_the_codecs_are_those_of_the_module():
    rows = table("| codec | | for |")
    assert tuple(rows) == frames.CODECS
    assert tuple(codec for codec, row in rows.items() if row[0].startswith("lossless")) == ("raw", "png")


def test_the_limits_are_those_of_the_module():
    assert f"at most {frames.MAX_REQUEST_BYTES} bytes, a reply {frames.MAX_REPLY_BYTES}" in PAGE
    assert f"nested at most {frames.MAX_DEPTH} deep" in PAGE
    assert f"`deadline_ms`, at most {frames.MAX_DEADLINE_MS}" in PAGE
    assert f"version {frames.VERSION}." in PAGE and f'"protocol": {frames.VERSION}' in PAGE
    assert f"within {cluster_server.HELLO_TIMEOUT_S:g} s" in PAGE and f"within {session_registry.PROBE_S:g} s" in PAGE


def test_the_frames_shown_are_frames_of_the_module():
    """The maps on the page have the very keys that the module writes."""

    def keys(frame: bytes) -> set[str]:
        return set(frames.unpack(frame)[0])

    shown = [set(re.findall(r'"(\w+)":', line)) for line in re.findall(r"`(\{[^`]*\})`", PAGE)]
    limits = set(frames.LIMITS) - {"lifetime_s"}
    assert keys(frames.encode_hello(Hello())) in shown
    assert keys(frames.encode_welcome(Welcome("s", "raw"))) | limits in shown
    assert keys(frames.encode_request(Request(1, "reset", 1.0))) in shown
    assert keys(frames.encode_reply(Reply(1))) in shown
    assert keys(frames.encode_reply(Reply(1, code=ErrorCode.IDLE))) | {"code", "message"} in shown


def test_the_outcomes_named_are_those_there_are():
    rows = table("| field | |")
    assert set(re.findall(r"`(\w+)`", rows["terminal"][0])) == set(TerminalState)
    assert set(re.findall(r"`(\w+)`", rows["evaluation"][0])) == set(EvaluationStatus)


def test_the_tokens_file_shown_is_one(tmp_path):
    text = re.search(r"```yaml\n(tokens:.*?)```", PAGE, re.DOTALL)
    path = tmp_path / "tokens.yaml"
    path.write_text(text[1])
    book = access_tokens.read_tokens(path, {"ALICE_TOKEN": "hers"})
    assert book.find("hers") == access_tokens.Principal("alice", 4, None)
    assert {entry["name"] for entry in yaml.safe_load(text[1])["tokens"]} == {p.name for p in book.principals.values()}
