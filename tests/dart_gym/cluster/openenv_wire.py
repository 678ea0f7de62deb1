"""OpenEnv's messages by hand, for tests."""

from __future__ import annotations

import json

from websockets.asyncio.client import ClientConnection

TASK = "fake/two-steps"


class Raw:
    """A websocket that speaks OpenEnv's messages by hand."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def ask(self, message: object) -> tuple[str, dict]:
        """Send a message (text and bytes as they are) and return the answer's type and data."""
        await self.connection.send(message if isinstance(message, (str, bytes)) else json.dumps(message))
        answer = json.loads(await self.connection.recv())
        return answer["type"], answer["data"]
