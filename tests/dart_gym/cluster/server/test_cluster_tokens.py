"""Tokens files: who each token stands for, and that a wrong file says what is wrong with it."""

from __future__ import annotations

import hashlib
import os

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from websockets.datastructures import Headers

from dart_gym.cluster.server.access_tokens import (
    ANYBODY,
    Principal,
    TokenBook,
    TokenFile,
    new_token,
    read_tokens,
    token_line,
)
from dart_gym.core.errors import ConfigurationError

HASH = hashlib.sha256(b"secret").hexdigest()


@pytest.fixture
def written(tmp_path):
    """Writes a tokens file."""

    def write(text: object):
        path = tmp_path / "tokens.yaml"
        path.write_text(text if isinstance(text, str) else yaml.safe_dump({"tokens": text}))
        return path

    return write


def test_a_token_is_found_by_its_hash_or_by_a_variable(written):
    path = written([{"name": "a", "sha256": HASH, "desktops": 3}, {"name": "b", "env": "B", "sessions": 2}])
    book = read_tokens(path, {"B": "other"})
    assert book.find("secret") == Principal("a", 3, None)
    assert book.find("other") == Principal("b", None, 2)
    assert book.find(HASH) is None and book.find("") is None and book.find("Secret") is None
    assert (book.quota("a"), book.quota("b"), book.quota("nobody")) == (3, None, None)


@pytest.mark.parametrize(
    ("values", "who"),
    [
        (["Bearer secret"], "a"),
        (["bearer   secret  "], "a"),
        (["Bearer wrong"], None),
        (["Basic secret"], None),
        (["secret"], None),
        (["Bearer "], None),
        ([], None),
        (["Bearer secret", "Bearer secret"], None),
    ],
)
def test_who_a_request_comes_from(values, who):
    book = TokenBook({hashlib.sha256(b"secret").digest(): Principal("a")})
    headers = Headers()
    for value in values:
        headers["Authorization"] = value
    found = book.authenticate(headers)
    assert (found.name if found else None) == who


def test_one_token_and_none():
    assert TokenBook.of_one(None).authenticate(Headers()) is ANYBODY
    one = TokenBook.of_one("secret")
    assert one.authenticate(Headers()) is None
    assert one.authenticate(Headers(Authorization="Bearer secret")) == Principal("token", watches_all=True)


@given(st.text(max_size=40))
def test_no_other_text_is_a_token(text):
    book = TokenBook.of_one("secret")
    assert (book.find(text) is not None) == (text == "secret")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("tokens: [", "not YAML"),
        ("[]", "wrong"),
        ("tokens:\n- {name: a, sha256: abc}", "sha256"),
        ("tokens:\n- {name: a}", "a in .* needs either sha256 or env"),
        (f"tokens:\n- {{name: a, sha256: {HASH}, env: X}}", "either sha256 or env"),
        (f"tokens:\n- {{name: a, sha256: {HASH}, desktop: 3}}", "did you mean 'desktops'"),
        (f"tokens:\n- {{name: a, sha256: {HASH}, desktops: -1}}", "desktops"),
        (f"tokens:\n- {{name: 'a b', sha256: {HASH}}}", "name"),
        ("tokens:\n- {name: a, env: NOT_SET}", "NOT_SET.*is not set: export"),
        (f"tokens:\n- {{name: a, sha256: {HASH}}}\n- {{name: b, sha256: {HASH}}}", "twice, for a and b"),
        (
            f"tokens:\n- {{name: a, sha256: {HASH}, desktops: 1}}\n- {{name: a, sha256: {'a' * 64}, desktops: 2}}",
            "different quotas",
        ),
    ],
)
def test_a_wrong_file_says_what_is_wrong(written, text, match):
    with pytest.raises(ConfigurationError, match=match):
        read_tokens(written(text), {})


def test_a_missing_file(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot read the tokens file"):
        TokenFile(tmp_path / "none.yaml")


def test_a_name_may_have_two_tokens_so_that_one_can_replace_the_other(written):
    other = hashlib.sha256(b"other").hexdigest()
    book = read_tokens(written([{"name": "a", "sha256": HASH}, {"name": "a", "sha256": other}]))
    assert book.find("secret") == book.find("other") == Principal("a")


def test_a_file_tells_when_it_has_changed(written):
    file = TokenFile(written([{"name": "a", "sha256": HASH}]))
    assert not file.changed()
    path = written([])
    assert file.changed() and not file.changed()
    assert file.read().principals == {}
    os.unlink(path)
    assert file.changed()
    with pytest.raises(ConfigurationError):
        file.read()
    assert file.book.principals == {}


def test_the_line_of_a_new_token_belongs_into_a_file(written):
    token = new_token()
    line = token_line("alice", token, desktops=3)
    assert token not in line and len(token) >= 43
    assert read_tokens(written("tokens:\n" + line)).find(token) == Principal("alice", 3)
    with pytest.raises(ConfigurationError, match="name"):
        token_line("not a name", token)
