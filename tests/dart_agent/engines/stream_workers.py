"""The workers of a server that takes streamed weights: in a thread here, or as processes of their own (as a script).

They do with `dart_weight_stream` what our vLLM backend does with it, and keep what they received.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from dart_agent.engines.weight_stream.dart_weight_stream import TCPGroup, receive

TIMEOUT_S = 60.0


class Worker:
    """One worker.

    Attributes:
        received: tensors by name, in the order in which they came.
        parts: how many of them came together.
    """

    workers = 1

    def __init__(self, index: int = 0) -> None:
        self._index = index
        self._group: TCPGroup | None = None
        self._buffer_bytes = 0
        self.received: dict[str, Any] = {}
        self.parts: list[int] = []

    def meet(self, init_info: dict[str, Any]) -> None:
        self.leave()
        assert init_info["packed"], "vLLM would take the tensors one by one"
        self._buffer_bytes = init_info["packed_buffer_size_bytes"]
        rank, address = self._index + init_info["rank_offset"], init_info["master_address"]
        self._group = TCPGroup(address, init_info["master_port"], rank, init_info["world_size"], timeout_s=TIMEOUT_S)

    def receive(self, update_info: dict[str, Any]) -> None:
        assert self._group is not None
        self.received, self.parts = {}, []

        def load(tensors: list[tuple[str, Any]]) -> None:
            self.received |= dict(tensors)
            self.parts.append(len(tensors))

        receive(self._group, **update_info, buffer_bytes=self._buffer_bytes, load=load)

    def leave(self) -> None:
        if self._group is not None:
            self._group.destroy()
        self._group = None


class WorkerProcesses:
    """Several, each a process that writes what it received into a directory."""

    def __init__(self, workers: int, directory: Path) -> None:
        self.workers, self._directory = workers, directory
        self._processes = [
            subprocess.Popen(
                [sys.executable, __file__, str(index), str(directory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for index in range(workers)
        ]

    def meet(self, init_info: dict[str, Any]) -> None:
        self._all("meet", init_info)

    def receive(self, update_info: dict[str, Any]) -> None:
        self._all("receive", update_info)

    def leave(self) -> None:
        self._all("leave", None)

    def close(self) -> None:
        for process in self._processes:
            process.communicate(timeout=60)
            assert process.returncode == 0

    def file(self, index: int) -> Path:
        """What a worker received."""
        return self._directory / f"{index}.safetensors"

    def _all(self, op: str, argument: object) -> None:
        for process in self._processes:
            print(json.dumps([op, argument]), file=process.stdin, flush=True)
        for process in self._processes:
            if process.stdout.readline() != "done\n":
                raise RuntimeError("a worker ended")


def main(index: int, directory: Path) -> None:
    from safetensors.torch import save_file

    worker = Worker(index)
    for line in sys.stdin:
        op, argument = json.loads(line)
        getattr(worker, op)(*([] if argument is None else [argument]))
        if op == "receive":
            save_file(worker.received, directory / f"{index}.safetensors", {"order": json.dumps([*worker.received])})
        print("done", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
