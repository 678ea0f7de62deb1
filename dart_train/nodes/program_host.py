"""ProgramHost: the Ray actor that runs one program of a run on its node and reports the output and exit status.

Invariants:
    - The program ends with its actor (the kernel signals it), and the actor ends with the process that created it.
    - Each node has its own directory for the run; on the launcher's node it is the run directory itself. Elsewhere
      `poll` hands on what the program writes to its log and into `metrics`, from the start of this program.
    - A node fetches a version once, regardless of how many of its programs ask for it.
"""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dart_agent.engines.base.engine_kind import EngineKind, Launch, Public
from dart_gym.utils.durable_files import make_directories, write_file
from dart_gym.utils.owned_directories import make_owned_directory
from dart_gym.utils.processes import SUPERVISED, free_port
from dart_train.core.child_process import ChildProcess
from dart_train.data.files.shared_directories import fetch
from dart_train.nodes.run_keys import RunKeys
from dart_train.run.run_directory import RunDirectory
from dart_train.run.supervisor import start_child

NODE_DIR_ENV = "DART_NODE_DIR"
CLUSTER_ENV = "DART_RAY_ADDRESS"
"""Variable that tells a process of a run on Ray the address of the cluster."""

KEEPER_SCRIPT = """
setpriv --pdeathsig TERM "$@" & trap "kill $!" TERM
while :; do wait $!; status=$?; kill -0 $! 2>/dev/null || exit $status; done"""
KEEPER = ("sh", "-c", KEEPER_SCRIPT, "engine")
"""Wraps a server with worker processes, such as vLLM. An actor that ends kills its own children at once. The server is
not a child of the actor: it is told to end instead, and can end its workers."""
MOST_BYTES = 1 << 20  # of each file in one answer of `poll`
HOST, PORT, CERTIFICATE, KEY = "@HOST@", "@PORT@", "@CERTIFICATE@", "@KEY@"
"""Placeholders in the arguments of a program, for values that only its node knows."""


@dataclass(frozen=True, slots=True)
class RunOnNodes:
    """The description of a run that every node gets.

    Attributes:
        name: name of the run.
        root: run directory on the launcher's node.
        home: Ray's id of the launcher's node.
        config: text of the configuration.
        keys: secrets of the run.
        directory: working directory of the launcher.
        cluster: address of the Ray cluster.
        environment: variables of its programs: addresses and credentials of database and object store.
    """

    name: str
    root: str
    home: str
    config: str
    keys: RunKeys
    directory: str
    cluster: str
    environment: dict[str, str] = field(default_factory=dict, repr=False)


class ProgramHost:
    """Runs one program. Its methods are called one at a time, in the thread that lives as long as it does.

    Args:
        run: the run that the program is a part of.
        name: name of the program, for its log.
        node: id of this node, and the IP address at which others reach it; None asks Ray.
    """

    def __init__(self, run: RunOnNodes, name: str, node: tuple[str, str] | None = None) -> None:
        this, self._address = node or _this_node()
        self._spec, self._name = run, name
        self._at_home = this == run.home
        own = Path(os.environ.get(NODE_DIR_ENV) or Path.home() / ".cache" / "dart-gui") / "runs" / run.name
        self._run = RunDirectory(Path(run.root) if self._at_home else own)
        self._short = make_owned_directory("node")  # sockets and keys
        self._process: ChildProcess | None = None
        self._begun: dict[str, int] = {}
        os.environ.update(run.environment)  # for `fetch`

    def start(self, argv: Sequence[str], environment: Mapping[str, str], python: str) -> dict[str, str]:
        """Start a program; return the values of its placeholders.

        Args:
            argv: program and arguments; paths in the launcher's run directory are replaced by those of this node.
            environment: variables besides those of the run.
            python: the launcher's interpreter, which is replaced by this node's.
        """
        if not self._at_home:
            self._run.create()
            write_file(self._run.config, self._spec.config)
        own = self._own_values()
        runs = Path(self._spec.root).parent
        words = [_moved(word, runs, self._run.root.parent) for word in argv]
        for old, new in own.items():
            words = [word.replace(old, new) for word in words]
        self._start([sys.executable if words[0] == python else words[0], *words[1:]], environment)
        return own

    def start_server(self, kind: EngineKind, launch: Launch, url: str) -> str:
        """Start an engine with shared weights; return the address at which other nodes reach it."""
        path = self.fetch(url)
        own = self._own_values()
        public = Public(self._address, int(own[PORT]), own[CERTIFICATE], own[KEY])
        launch = replace(launch, path=path, directory=self._short, public=public)
        command = kind.command(launch)
        self._start((*KEEPER, *command.argv) if command.has_workers else command.argv, command.environment)
        return command.url

    def fetch(self, url: str) -> str:
        """Return the directory of shared weights on this node, after fetching them if necessary."""
        return str(fetch(url, self._run.root / "engine-copies"))

    def poll(self, seen: Mapping[str, int]) -> tuple[int | None, dict[str, bytes]]:
        """Return the program's exit status (None while it runs), and the new output by file.

        Args:
            seen: number of bytes of each file that the caller has already.
        """
        status = self._process.poll() if self._process is not None else None
        parts = {}
        for name, path in {} if self._at_home else self._handed_on().items():
            with path.open("rb") as file:
                file.seek(self._begun.get(name, 0) + seen.get(name, 0))
                if part := file.read(MOST_BYTES):
                    parts[name] = part
        return (status if not any(len(part) == MOST_BYTES for part in parts.values()) else None), parts

    def signal(self, signum: int) -> None:
        """Send a signal to the program."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signum)

    def kill_all(self) -> None:
        """Kill the program and all processes that it started."""
        if self._process is not None:
            self._process.kill_all()
            self._process.wait()
        shutil.rmtree(self._short, ignore_errors=True)

    def _start(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self._begun = {} if self._at_home else {name: path.stat().st_size for name, path in self._handed_on().items()}
        authority = self._short / "authority.pem"
        write_file(authority, self._spec.keys.authority)
        values = {
            **{
                name: value for name, value in os.environ.items() if not name.startswith("RAY_")
            },  # these are for the actor itself
            SUPERVISED: "1",
            **self._spec.environment,
            **self._spec.keys.environment(authority),
            CLUSTER_ENV: self._spec.cluster,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path and f"{os.sep}ray{os.sep}" not in path),
            **environment,
        }
        if given := os.environ.get("CUDA_VISIBLE_DEVICES"):
            values["CUDA_VISIBLE_DEVICES"] = given  # the GPUs that Ray chose on this node
        make_directories(self._run.logs)
        with self._log.open("ab") as log:
            directory = self._spec.directory if self._at_home else None
            self._process = start_child(argv, values, log, directory=directory)

    @property
    def _log(self) -> Path:
        return self._run.logs / f"{self._name}.log"

    def _handed_on(self) -> dict[str, Path]:
        files = {"log": self._log} if self._log.exists() else {}
        return files | {path.name: path for path in (self._run.root / "metrics").glob("*.jsonl")}

    def _own_values(self) -> dict[str, str]:
        certificate, key = self._short / "node.pem", self._short / "node.key"
        for path, data in zip((certificate, key), self._spec.keys.certificate(self._address), strict=True):
            write_file(path, data, mode=0o600)
        return {HOST: self._address, PORT: str(free_port(self._address)), CERTIFICATE: str(certificate), KEY: str(key)}


def _this_node() -> tuple[str, str]:
    import ray

    return str(ray.get_runtime_context().get_node_id()), str(ray.util.get_node_ip_address())


def _moved(word: str, old: Path, new: Path) -> str:
    """Return an argument with the directory of runs replaced, if it is that directory or a path in it. Pure."""
    if word != str(old) and not word.startswith(f"{old}/"):
        return word
    return str(new) + word.removeprefix(str(old))
