"""Access to a cluster: bearer tokens, each with a name and quotas.

A tokens file names for each token its SHA-256, or the environment variable that holds it; never the token:

    tokens:
      - {name: trainer, sha256: 9f86d0…, desktops: 32, sessions: 64}
      - {name: alice, env: ALICE_TOKEN, desktops: 4}
      - {name: operator, env: OPERATOR_TOKEN, desktops: 0, watch: all}

`dart-gym token` makes a token and its line. A plain hash is enough for long random tokens, and for nothing else.

Invariants:
    - Tokens are compared by their hashes and in constant time, and are in no message and no log.
    - A `TokenBook` is a value: a changed file is read into a new one (see `TokenFile`).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import pydantic
import yaml
from pydantic import BaseModel, ConfigDict, Field

from dart_gym.core.errors import ConfigurationError
from dart_gym.core.suggestions import suggest


class Headers(Protocol):
    """HTTP headers, as websockets has them."""

    def get_all(self, key: str) -> list[str]:
        """Return all values of a header; the case of its name does not matter."""
        ...


@dataclass(frozen=True, slots=True)
class Principal:
    """The owner of a token.

    Attributes:
        name: what quotas, fairness, the status and logs go by; "" where no tokens are used.
        max_desktops: how many desktops its sessions may hold together; None for no limit.
    """

    name: str = ""
    max_desktops: int | None = None
    max_sessions: int | None = None
    watches_all: bool = False


ANYBODY = Principal(watches_all=True)


@dataclass(frozen=True, slots=True)
class TokenBook:
    """The tokens of a server: who each hash stands for. An empty book with `open` lets anybody in."""

    principals: Mapping[bytes, Principal]
    open: bool = False

    @classmethod
    def of_one(cls, token: str | None) -> TokenBook:
        """A single token without quotas; None lets anybody in."""
        return cls({}, open=True) if token is None else cls({_digest(token): Principal("token", watches_all=True)})

    def find(self, token: str) -> Principal | None:
        """Return the owner of a token, or None if nobody owns it."""
        digest, found = _digest(token), None
        for known, principal in self.principals.items():
            if hmac.compare_digest(known, digest):
                found = principal
        return found

    def authenticate(self, headers: Headers) -> Principal | None:
        """Return who sent a request, by `Bearer`, or `Basic` with the token as password; None without access."""
        if self.open:
            return ANYBODY
        given = headers.get_all("Authorization")
        token = _token_of(given[0]) if len(given) == 1 else None
        return self.find(token) if token else None

    def quota(self, name: str) -> int | None:
        """How many desktops the sessions of a name may hold together; None for no limit."""
        return next((p.max_desktops for p in self.principals.values() if p.name == name), None)


def _token_of(authorization: str) -> str | None:
    scheme, _, credentials = authorization.strip().partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip()
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(credentials.strip(), validate=True).decode().partition(":")[2]
    except ValueError:
        return None  # neither base64 nor text: nobody's token


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[\w.@+-]+$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")] | None = None
    env: Annotated[str, Field(min_length=1)] | None = None
    desktops: Annotated[int, Field(ge=0)] | None = None
    sessions: Annotated[int, Field(ge=0)] | None = None
    watch: Literal["own", "all"] = "own"

    def principal(self) -> Principal:
        return Principal(self.name, self.desktops, self.sessions, self.watch == "all")


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")
    tokens: list[_Entry]


class TokenFile:
    """A tokens file, with what it held when it was last read.

    Raises:
        ConfigurationError: if the file is unreadable or malformed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp = _stamp(path)
        self.book = read_tokens(path)

    def changed(self) -> bool:
        """Return whether the file is another one than at the last look, which this is."""
        before, self._stamp = self._stamp, _stamp(self.path)
        return self._stamp != before

    def read(self) -> TokenBook:
        """Read it again. Raises `ConfigurationError`, and keeps the last book then."""
        self.book = read_tokens(self.path)
        return self.book


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def read_tokens(path: Path, environment: Mapping[str, str] = os.environ) -> TokenBook:
    """Read a tokens file.

    Raises:
        ConfigurationError: if the file cannot be read, or a line is wrong; the message names the line.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        entries = _File.model_validate(values).tokens
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read the tokens file {path}: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigurationError(f"the tokens file {path} is not YAML: {' '.join(str(error).split())}") from None
    except pydantic.ValidationError as error:
        raise ConfigurationError(f"the tokens file {path} is wrong: {_explain(error)}") from None
    return TokenBook(_principals(path, entries, environment))


def _principals(path: Path, entries: Iterable[_Entry], environment: Mapping[str, str]) -> dict[bytes, Principal]:
    """By digest. A name may have several tokens, so that one can be replaced while both are good; not two quotas."""
    found: dict[bytes, Principal] = {}
    named: dict[str, Principal] = {}
    for entry in entries:
        digest, principal = _digest_of(path, entry, environment), entry.principal()
        if found.get(digest, principal) != principal:
            names = f"{found[digest].name} and {entry.name}"
            raise ConfigurationError(f"the tokens file {path} has one token twice, for {names}: remove one")
        if named.setdefault(entry.name, principal) != principal:
            raise ConfigurationError(f"the tokens file {path} gives {entry.name} different quotas: make them equal")
        found[digest] = principal
    return found


def _digest_of(path: Path, entry: _Entry, environment: Mapping[str, str]) -> bytes:
    if (entry.sha256 is None) == (entry.env is None):
        raise ConfigurationError(f"{entry.name} in the tokens file {path} needs either sha256 or env")
    if entry.sha256 is not None:
        return bytes.fromhex(entry.sha256)
    token = environment.get(entry.env or "", "")
    if not token:
        raise ConfigurationError(
            f"the environment variable {entry.env}, which the tokens file {path} names for {entry.name}, is not set: "
            "export the token before the server starts, or put its sha256 there"
        )
    return _digest(token)


def _explain(error: pydantic.ValidationError) -> str:
    first: Any = error.errors()[0]
    where = ".".join(map(str, first["loc"])) or "the file"
    if first["type"] != "extra_forbidden":
        return f"{where}: {first['msg']}"
    return f"{where} is unknown; {suggest(str(first['loc'][-1]), [*_Entry.model_fields, *_File.model_fields])}"


def new_token() -> str:
    """A token that nobody can guess."""
    return secrets.token_urlsafe(32)


def token_line(name: str, token: str, desktops: int | None = None, sessions: int | None = None) -> str:
    """Return a token's entry for a tokens file; it holds a hash and not the token.

    Raises:
        ConfigurationError: if the name or a quota is invalid.
    """
    values = {"name": name, "sha256": _digest(token).hex(), "desktops": desktops, "sessions": sessions}
    try:
        _Entry.model_validate(values)
    except pydantic.ValidationError as error:
        raise ConfigurationError(f"there can be no such token: {_explain(error)}") from None
    kept = {key: value for key, value in values.items() if value is not None}
    return "- " + yaml.safe_dump(kept, default_flow_style=True, sort_keys=False, width=1000).strip()


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
