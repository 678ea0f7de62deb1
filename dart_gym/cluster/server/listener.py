"""Where a server listens: a Unix socket, or a TCP port, with TLS if it has a certificate."""

import errno
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve, unix_serve

from dart_gym.cluster.wire.cluster_address import Address
from dart_gym.core.errors import AddressError, ConfigurationError

Handler = Callable[[ServerConnection], Awaitable[None]]


async def listen(address: Address, handler: Handler, tls: ssl.SSLContext | None, options: dict[str, Any]) -> Server:
    """Listen, with the options of `websockets.asyncio.server.serve`.

    Raises:
        AddressError: if the address is in use or does not exist.
    """
    try:
        if not address.is_unix:
            return await serve(handler, address.host, address.port, ssl=tls, **options)
        _remove_stale_socket(address)
        previous = os.umask(0o177)  # the socket belongs to this user alone from its first moment on
        try:
            return await unix_serve(handler, address.path, **options)
        finally:
            os.umask(previous)
    except OSError as error:
        raise AddressError(_explain_bind(address, error)) from error


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return a server's TLS context with a certificate (chain) and its key, both PEM files.

    Raises:
        ConfigurationError: if the files are not a certificate and its key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_certificate(context, certificate, key)
    return context


def load_certificate(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Use a certificate for the connections to come. Raises `ConfigurationError` as `tls_context` does."""
    for path in (certificate, key):
        if not os.access(path, os.R_OK):
            raise ConfigurationError(f"cannot read {path}, named by --tls-cert or --tls-key")
    try:
        # a key with a password would ask the terminal
        context.load_cert_chain(certificate, key, password=_refuse_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise ConfigurationError(f"{certificate} and {key} are no PEM certificate with its key: {error}") from None


def _refuse_password() -> str:
    raise ValueError("the key is protected by a password; give one that is not")


def _remove_stale_socket(address: Address) -> None:
    """Remove a socket that a killed server left behind; refuse one on which somebody answers."""
    if not os.path.exists(address.path):
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(address.path)
        except ConnectionRefusedError:
            os.unlink(address.path)
            return
    raise OSError(errno.EADDRINUSE, "another server answers there")


def _explain_bind(address: Address, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        if address.is_unix:
            return f"{address.path} is in use by another server: stop it, or choose another --listen"
        return (
            f"port {address.port} on {address.host} is in use: see who with `ss -ltnp sport = :{address.port}`, "
            "and stop it or choose another --listen"
        )
    return f"cannot listen on {address.url}: {error}"
