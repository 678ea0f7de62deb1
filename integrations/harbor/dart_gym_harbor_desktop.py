#!/usr/bin/env python3
"""The command `desktop` of a Harbor task: one desktop with one episode, held by a process in the background.

    desktop start TASK --seed N --key-hash HEX   begin the episode, if it has not begun
    desktop screenshot FILE                      write the screen as a PNG; says the instruction and what went wrong
    desktop act JSON                             one action, such as '{"kind": "click", "x": 10, "y": 20}'
    desktop solve --key FILE                     play as a perfect user, to the end
    desktop score --key FILE                     end the episode; the task's own score in [0, 1]

The commands of solution and verifier need the key that only their folders hold; the background process knows its hash.

Invariants:
    - Actions are typed: what is asked becomes one of `dart_gym.core.actions`, never a command.
    - An episode that the environment lost has no score: `score` fails, and Harbor finds no reward.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SOCKET = os.environ.get("DESKTOP_SOCKET", "/tmp/desktop.socket")
START_S = 120.0
MOST = 1 << 24  # bytes of a request or an answer


class Refused(Exception):
    """What was asked is not done; the message says why."""


class Episode:
    """The episode on a session of a private cluster."""

    def __init__(self, session: Any, seen: Any, key_hash: str) -> None:
        self._session, self._seen, self._key_hash = session, seen, key_hash
        self._turn = asyncio.Lock()

    async def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Do what a command asks. Raises `Refused`, `ValueError`."""
        from dart_gym.core.actions import action_from_dict
        from dart_gym.core.outcomes import TerminalState
        from dart_gym.utils.png import encode_png

        async with self._turn:
            if asked["do"] in ("solve", "score"):
                given = hashlib.sha256(str(asked.get("key", "")).encode()).hexdigest()
                if given != self._key_hash:
                    raise Refused("that is for the solution and the verifier")
            if asked["do"] == "act":
                action = action_from_dict(asked["action"])
                if self._seen.terminal is not None:
                    raise Refused("the episode has ended")
                self._seen = await self._session.step(action)
            if asked["do"] == "solve":
                while self._seen.terminal is None:
                    self._seen = await self._session.step(await self._session.oracle())
            if asked["do"] == "score" and self._seen.terminal is None:
                self._seen = await self._session.finish(TerminalState.DONE)
            seen, told = self._seen, {"instruction": self._seen.observation.instruction}
            told |= {"action_error": seen.observation.action_error, "ended": seen.terminal is not None}
            if asked["do"] == "score":
                if seen.evaluation.score is None:
                    raise Refused(f"the environment lost the episode: {seen.evaluation.detail}")
                told["score"] = seen.evaluation.score
            if asked["do"] == "screenshot":
                told["png"] = base64.b64encode(encode_png(seen.observation.screenshot)).decode()
            return told


async def hold(task: str, seed: int, key_hash: str) -> None:
    """Begin the episode, and answer commands until this process is ended."""
    from dart_gym.cluster.client.private_cluster import LocalCluster
    from dart_gym.core.errors import DartGymError

    # No sandbox but the task's container: who has a shell in it could reach into any other.
    async with LocalCluster(1, sandbox="none") as cluster, cluster.client().session() as session:
        episode = Episode(session, await session.reset(task, seed=seed), key_hash)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                told = await episode.answer(json.loads(await reader.readline()))
            except (Refused, DartGymError, ValueError, TypeError, KeyError) as error:
                told = {"error": f"{error}"}
            writer.write(json.dumps(told).encode() + b"\n")
            await writer.drain()
            writer.close()

        server = await asyncio.start_unix_server(serve, f"{SOCKET}.new", limit=MOST)
        os.rename(f"{SOCKET}.new", SOCKET)  # who finds it is answered
        await server.serve_forever()


def ask(do: str, **what: Any) -> dict[str, Any]:
    """Ask the process in the background. Raises `Refused`, `OSError`: it is not there."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(SOCKET)
        connection.sendall(json.dumps({"do": do, **what}).encode() + b"\n")
        told = json.loads(connection.makefile("rb").readline(MOST) or b'{"error": "the desktop is gone"}')
    if "error" in told:
        raise Refused(told["error"])
    return told


def start(task: str, seed: int, key_hash: str) -> dict[str, Any]:
    """Start the process in the background, if there is none, and wait until the episode has begun."""
    try:
        return ask("look")
    except OSError:
        command = [sys.executable, __file__, "hold", task, "--seed", str(seed), "--key-hash", key_hash]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        with Path(f"{SOCKET}.log").open("wb") as log:
            process = subprocess.Popen(command, start_new_session=True, stderr=log, **quiet)
    deadline = time.monotonic() + START_S
    while not Path(SOCKET).exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise Refused(f"the desktop did not start: {Path(f'{SOCKET}.log').read_text()[-2000:]}")
        time.sleep(0.05)
    return ask("look")


def main() -> int:
    """Run a command."""
    parser = argparse.ArgumentParser(prog="desktop", description="A desktop with a task.")
    commands = parser.add_subparsers(dest="do", required=True)
    for name in ("start", "hold"):
        one = commands.add_parser(name)
        one.add_argument("task")
        one.add_argument("--seed", type=int, default=0)
        one.add_argument("--key-hash", required=True)
    commands.add_parser("screenshot").add_argument("file", type=Path)
    commands.add_parser("act").add_argument("action")
    for name in ("solve", "score"):
        commands.add_parser(name).add_argument("--key", type=Path, required=True)
    given = parser.parse_args()
    try:
        if given.do == "hold":
            asyncio.run(hold(given.task, given.seed, given.key_hash))
        elif given.do == "start":
            print(json.dumps(start(given.task, given.seed, given.key_hash)))
        elif given.do == "screenshot":
            told = ask("screenshot")
            given.file.write_bytes(base64.b64decode(told.pop("png")))
            print(json.dumps(told))
        elif given.do == "act":
            print(json.dumps(ask("act", action=json.loads(given.action))))
        else:
            told = ask(given.do, key=given.key.read_text().strip())
            print(told["score"] if given.do == "score" else json.dumps(told))
    except (Refused, OSError, ValueError) as error:
        print(f"desktop: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
