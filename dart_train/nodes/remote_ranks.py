"""RemoteRanks: the ranks that train together on several nodes, as one program.

Invariants:
    - The first node's are started first: it tells where it listens, and the others meet it there.
    - They end together: where one node's have failed, the others' wait for them in vain, and are killed.
"""

from collections.abc import Callable, Sequence

from dart_train.nodes.remote_program import Polled, RemoteProgram


class RemoteRanks(Polled):
    """A `Process` of several, one on each node.

    Args:
        first: that of the first node.
        start_others: starts the others, given what the first one's node told of itself.
        nodes: how many there are.
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
