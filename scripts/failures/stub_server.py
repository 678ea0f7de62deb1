"""A server whose misbehaviour is a parameter: HTTP (and what refuses a WebSocket), MySQL's handshake, plain TCP."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from enum import StrEnum

from scripts.failures.situations import Situation

REFUSED_PORT = 9
PAGE = b"<html><title>Sign in</title></html>"
CHAT = b'{"choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}]}'
MYSQL_ERRORS = {
    Situation.UNAUTHORIZED: (1045, "28000", "Access denied for user 'me'@'localhost' (using password: NO)"),
    Situation.TOO_MANY: (1040, "08004", "Too many connections"),
    Situation.SERVER_ERROR: (1105, "HY000", "Unknown error"),
}


class Protocol(StrEnum):
    """What the server speaks when it behaves."""

    HTTP = "http"
    MYSQL = "mysql"
    TCP = "tcp"


class Stub:
    """A listening server; `asked` is set once somebody has sent or awaits something."""

    def __init__(self, protocol: Protocol, situation: Situation) -> None:
        self.asked, self.requests = threading.Event(), 0
        self._protocol, self._situation = protocol, situation
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stop listening and drop all connections."""
        for one in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            serve: Callable[[socket.socket], None] = {
                Protocol.HTTP: self._http, Protocol.MYSQL: self._mysql, Protocol.TCP: self._tcp,
            }[self._protocol]  # fmt: skip
            threading.Thread(target=self._serve, args=(serve, connection), daemon=True).start()

    def _serve(self, serve: Callable[[socket.socket], None], connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            serve(connection)
        if self._situation is not Situation.HANGS:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _http(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as incoming:
            while line := incoming.readline():
                method, path = line.split()[:2]
                length = 0
                while (header := incoming.readline().strip().lower()) != b"":
                    if header.startswith(b"content-length:"):
                        length = int(header.partition(b":")[2])
                incoming.read(length)
                self.requests += 1
                self.asked.set()
                if self._situation is Situation.HANGS:
                    return
                connection.sendall(self._reply(method, path))
                if self._situation is Situation.HALF:
                    return

    def _reply(self, method: bytes, path: bytes) -> bytes:
        """One HTTP reply. Where some are lost, the first few are."""
        status, kind, body, length = b"200 OK", b"text/html", PAGE, len(PAGE)
        if self._situation in (Situation.UNAUTHORIZED, Situation.TOO_MANY, Situation.SERVER_ERROR, Situation.ALL_LOST):
            number = "500" if self._situation is Situation.ALL_LOST else self._situation.value
            status = f"{number} No".encode()
        elif self._situation is Situation.SOME_LOST:
            status, kind, body = (b"500 No", kind, PAGE) if self.requests <= 5 else (status, b"application/json", CHAT)
            length = len(body)
        elif self._situation is Situation.HALF:
            kind, body, length = b"application/json", b'{"choices": [', 1000
        head = b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n" % (status, kind, length)
        return head if method == b"HEAD" else head + body

    def _mysql(self, connection: socket.socket) -> None:
        self.asked.set()
        if self._situation in MYSQL_ERRORS:
            number, state, text = MYSQL_ERRORS[self._situation]
            payload = b"\xff" + struct.pack("<H", number) + f"#{state}{text}".encode()
            connection.sendall(struct.pack("<I", len(payload)) + payload)
        elif self._situation is Situation.HTML:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + PAGE)
        elif self._situation is Situation.HALF:
            connection.sendall(struct.pack("<I", 90) + b"\x0a8.0.36")

    def _tcp(self, connection: socket.socket) -> None:
        self.asked.set()
        if self._situation is Situation.HTML:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + PAGE)
        elif self._situation is Situation.HALF:
            connection.recv(1)


@contextlib.contextmanager
def stub(protocol: Protocol, situation: Situation) -> Iterator[Stub]:
    """A server for the time of the context."""
    server = Stub(protocol, situation)
    try:
        yield server
    finally:
        server.close()
