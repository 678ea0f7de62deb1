"""What a cluster's server can be told: in a file, on the command line of `dart-gym serve`, or in a run's `cluster`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field, model_validator

from dart_gym.cluster.pool.boot_admission import MIB, Limits
from dart_gym.cluster.wire.cluster_address import parse_address
from dart_gym.core.errors import ConfigurationError
from dart_gym.core.section import Section, constant
from dart_gym.desktops.osworld_api.api_address import APIPolicy

ANSWER_TIMEOUT_S = 30.0
"""Seconds for which a page waits for an answer of its cluster."""

LimitName: TypeAlias = Literal["memory_mb", "processes", "cpus", "storage_mb"]


class DesktopSettings(Section):
    """The desktops of a server, and how long sessions may hold them."""

    REMOVED: ClassVar[Mapping[str, str]] = {
        "idle_desktop_s": "it is always 300.0 now",
        "max_load": "it is always null now",
    }

    desktops: int = Field(4, ge=1, description="How many desktops may be in use at once.")
    provider: str = Field(
        "xvfb",
        description="Who makes the desktops: xvfb, docker, url, the name of an installed package's provider, or "
        "module:Class.",
    )
    provider_options: dict[str, Any] = Field(default_factory=dict, description="Options of the provider, by name.")
    isolation: Literal["bwrap", "none"] | None = Field(
        None,
        description="How programs of desktops are kept apart and from this machine: bwrap, or none, which is no "
        "protection at all, for machines that cannot make sandboxes; by default as the task says.",
    )
    desktop_limits: dict[LimitName, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict,
        description="What the programs of one desktop may use, by name: memory_mb (4096), files included; "
        "processes (1024), threads included; cpus (4); storage_mb (1024), each for home, /tmp and /dev/shm.",
    )
    warm: int | None = Field(
        None,
        ge=0,
        description="Warm desktops to hold booted, beside `desktops`, for the kinds asked for last. By default 1, or 0 "
        "where a provider has none to hold ready.",
    )
    reserve_mb: int | None = Field(
        None,
        ge=0,
        description="Memory in MiB that desktops leave to others; by default a twentieth of it, at most 512.",
    )
    grace_s: float = Field(30.0, ge=0, description="Seconds that a session outlives its connection.")
    idle_timeout_s: float = Field(900.0, gt=0, description="Seconds without a request after which a session ends.")
    lifetime_s: float | None = Field(
        None, gt=0, description="Seconds with a desktop after which a session ends; by default never."
    )
    drain_s: float = Field(5.0, ge=0, description="Seconds for which episodes go on after a SIGTERM.")
    idle_desktop_s: float = constant(300.0, "Seconds after which a free desktop is stopped.", gt=0)
    heartbeat_s: float = Field(20.0, gt=0, description="Seconds between the server's websocket pings.")
    osworld_urls: tuple[str, ...] = Field(
        (), description="Machines with OSWorld's server that clients may name; * stands for any."
    )
    suites: tuple[str, ...] = Field(
        (), description="Suites that clients may name as module:Class, which the server imports; * stands for any."
    )
    osworld_api: APIPolicy | None = Field(
        None,
        description="Gives each desktop the OSWorld API: on Unix sockets in `directory`, or without one on loopback "
        "ports, with a token unless `open_to_all`.",
    )

    @property
    def desktop_choices(self) -> dict[str, Any]:
        """Fields of a desktop's spec that this server chooses in the tasks' place."""
        choices: dict[str, Any] = {} if self.isolation is None else {"sandbox": self.isolation}
        for name, value in self.desktop_limits.items():
            choices[name] = value if name == "cpus" else int(value)
        return choices

    def limits(self, *, local: bool) -> Limits:
        """Return what must be left for a desktop to boot; `local`: desktops take memory of this machine."""
        reserve = None if self.reserve_mb is None else self.reserve_mb * MIB
        return Limits(reserve=reserve, memory=local)


class ServerSettings(DesktopSettings):
    """How a server behaves. What cannot be meant is refused with `ConfigurationError`."""

    listen: str = Field(
        "ws://127.0.0.1:8765", description="Where to listen: ws+unix:///path.sock (this machine), or ws://host:port."
    )
    token_env: str | None = Field(None, description="Environment variable with the token that clients must show.")
    token: str | None = Field(None, exclude=True, repr=False, description="The token itself, where code has it.")
    tokens: Path | None = Field(
        None, description="File of several tokens with names and quotas. It is read again when it changes."
    )
    open: bool = Field(
        False,
        description="On loopback, ask for no token: every user of this machine may then use the desktops. By default "
        "a token is made, and found by the same user's clients.",
    )
    tls_cert: Path | None = Field(None, description="Certificate (PEM) for --listen wss://host:port.")
    tls_key: Path | None = Field(None, description="Key (PEM) of the certificate.")

    @property
    def single_token(self) -> str | None:
        """The one token that clients must show; None without one, or for several. Raises `ConfigurationError`."""
        return self.token or token_of(self.token_env)

    @model_validator(mode="after")
    def _can_be_meant(self) -> ServerSettings:
        single = self.token or self.token_env
        if single and self.tokens:
            raise ConfigurationError("choose one of --token-env (a single token) and --tokens (a file of tokens)")
        address = parse_address(self.listen)
        if self.open and (single or self.tokens or not address.is_local):
            raise ConfigurationError("--open is for a server on loopback without --token-env and --tokens: drop one")
        if not single and not self.tokens and not address.is_local:
            raise ConfigurationError(
                f"{self.listen} can be reached from other machines, which needs a token: put a long random one into "
                "an environment variable and name it with --token-env, or give --tokens"
            )
        if address.tls != (self.tls_cert is not None) or (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigurationError(
                "TLS needs three things: --listen wss://host:port, --tls-cert and --tls-key; "
                f"given are --listen {self.listen}, --tls-cert {self.tls_cert} and --tls-key {self.tls_key}"
            )
        return self


def token_of(variable: str | None) -> str | None:
    """Return the token in an environment variable, or None without a variable.

    Raises:
        ConfigurationError: if the variable is not set.
    """
    if variable is None:
        return None
    token = os.environ.get(variable, "")
    if not token:
        raise ConfigurationError(f"the environment variable {variable} is not set: export the token (--token-env)")
    return token
