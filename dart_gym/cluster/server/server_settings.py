"""How a cluster's server behaves: typed, and refused at once where it cannot be meant."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dart_gym.cluster.pool.boot_admission import Limits
from dart_gym.cluster.wire.cluster_address import parse_address
from dart_gym.core.errors import ConfigurationError
from dart_gym.desktops.osworld_api.api_address import APIPolicy


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How a server behaves.

    Attributes:
        listen: URL to listen on.
        desktops: how many desktops may be lent at once.
        warm: how many desktops to hold booted in the warm pool, beside those that are lent.
        limits: what the machine must have left for a desktop to boot.
        token: bearer token that clients must show; None only where nobody else can connect.
        tokens: file of several tokens with names and quotas (see `cluster.tokens`), instead of `token`.
        tls_cert, tls_key: PEM files for `wss://`.
        grace_s: how long a session outlives its connection.
        idle_timeout_s: a session ends after so long without a request.
        lifetime_s: a session that holds a slot ends after so long, whatever it does; None for no limit.
        idle_desktop_s: a free desktop is stopped after so long.
        heartbeat_s: interval of websocket pings.
        drain_s: how long `drain` lets episodes go on.
        sandbox: replaces the tasks' choice ("bwrap" or "none") if given.
        osworld_urls: machines with OSWorld's server that clients may use; ("*",) for any.
        osworld_api: how each desktop offers the OSWorld API on this machine; None for not at all.
        suites: suites that clients may name as "module:Class", which the server imports; ("*",) for any.
    """

    listen: str
    desktops: int = 4
    warm: int = 0
    limits: Limits = Limits()
    token: str | None = None
    tokens: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    grace_s: float = 30.0
    idle_timeout_s: float = 900.0
    lifetime_s: float | None = None
    idle_desktop_s: float = 300.0
    heartbeat_s: float = 20.0
    drain_s: float = 5.0
    sandbox: str | None = None
    osworld_urls: tuple[str, ...] = ()
    osworld_api: APIPolicy | None = None
    suites: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.desktops < 1:
            raise ConfigurationError(f"desktops must be at least 1, got {self.desktops}")
        if self.warm < 0:
            raise ConfigurationError(f"warm must not be negative, got {self.warm}")
        if self.sandbox not in (None, "bwrap", "none"):
            raise ConfigurationError(f"sandbox must be 'bwrap' or 'none', got {self.sandbox!r}")
        if self.token and self.tokens:
            raise ConfigurationError("choose one of --token-env (a single token) and --tokens (a file of tokens)")
        address = parse_address(self.listen)
        if not self.token and not self.tokens and not address.is_local:
            raise ConfigurationError(
                f"{self.listen} can be reached from other machines, which needs a token: put a long random one into "
                "an environment variable and name it with --token-env, or give --tokens"
            )
        if address.tls != (self.tls_cert is not None) or (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigurationError(
                "TLS needs three things: --listen wss://host:port, --tls-cert and --tls-key; "
                f"given are --listen {self.listen}, --tls-cert {self.tls_cert} and --tls-key {self.tls_key}"
            )
