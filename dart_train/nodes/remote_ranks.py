"""RemoteRanks: the ranks that train together on several nodes, as one program.

Invariants:
    - The ranks of the first node are started first: that node reports where it listens, and the others connect to it.
    - All ranks end together: when those of one node have failed, the others would wait in vain, and are killed.
"""

from collections.abc import Callable, Sequence

from dart_train.nodes.remote_program import Polled, RemoteProgram


class RemoteRanks(Polled):
    """A `Process` that stands for one program on each node.

    Args:
        first: the program of the first node.
        start_others: starts the programs of the other nodes, given the start result of the first one.
        nodes: number of nodes.
    """

    def __init__(
        self, first: RemoteProgram, start_others: Callable[[dict[str, str]], Sequence[RemoteProgram]], nodes: int
    ) -> None:
        super().__init__(first.name)
        self._programs = [first]
        self._start_others = start_others
        self._nodes = nodes

    @property
    def node(self) -> str:
        """Addresses of the nodes; "" before they were started."""
        return ", ".join(filter(None, (program.node for program in self._programs)))

    def poll(self) -> int | None:
        """See `Process`."""
        if self.returncode is not None:
            return self.returncode
        ends = [program.poll() for program in self._programs]
        failed = next(filter(None, ends), None)
        if failed is not None:
            self.kill_all()
            self.returncode = failed
        elif len(ends) < self._nodes and self._programs[0].started is not None:
            self._programs += self._start_others(self._programs[0].started)
        elif ends == [0] * self._nodes:
            self.returncode = 0
        return self.returncode

    def terminate(self) -> None:
        """See `Process`."""
        for program in self._programs:
            program.terminate()

    def kill_all(self) -> None:
        """See `Process`."""
        for program in self._programs:
            program.kill_all()
