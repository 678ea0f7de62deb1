"""The rows of the table: how each command is called, what it needs, and which servers it talks to.

Placeholders in a row's line stand for what it reads: see `PLACES`. Where a situation cannot be, the row says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from scripts.failures.situations import OF_ITEMS, OF_SERVERS, Situation
from scripts.failures.stub_server import Protocol

PACKAGED = {
    "dart-gym tasks import": "dart-gym-task-sources",
    "dart-gym tasks new": "dart-gym-task-generator",
    "dart-agent ground collect": "dart-gym-grounding-data",
    "dart-agent ground explore": "dart-gym-grounding-data",
}
"""Commands of packages of their own: the programs say which one is missing."""
PLACES = {
    "config": ("mine.yaml", "mine.yaml", "mine.yaml"),
    "run": ("mine", "mine", "other"),
    "tasks": ("tasks", "tasks", "other"),
    "fetch": ("fetch", "fetch", "other"),
    "task": ("fake/two-steps", "nowhere/task", "other"),
    "suite": ("fake", "nowhere", "other"),
    "episode": ("evals/a/trajectories/fake+two-steps.s0", "evals/a", "other"),
    "a": ("evals/a", "evals/a", "other"),
    "b": ("evals/b", "evals/b", "other"),
    "model": ("model", "model", "other"),
    "items": ("items", "items", "other"),
    "results": ("results", "results", "other"),
    "archive": ("run.tar", "run.tar", "other"),
    "preset": ("ui-tars-1.5-7b", "nowhere", "other"),
}
"""By placeholder: what it is, what it is where nothing is there, and in the wrong directory."""

ONE_THING = "does one thing, which is done or not"
NO_SERVER = "opens no connection"
NO_FILE = "writes no file"
BEGINS = "begins a run where there is none"
SOON_OVER = "ends by itself within seconds"
CHAT = "--policy chat --model m --engine-url {url}/v1 --timeout 4"


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """A server that a command talks to.

    Attributes:
        name: of the server, for people.
        options: that lead the command there; `{url}`, `{ws}` and `{port}` are the stub's.
        line: of the command, instead of the row's own.
        variables: of the environment.
        reasons: why the server cannot answer so.
    """

    name: str
    options: str
    protocol: Protocol = Protocol.HTTP
    line: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[Situation, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One command.

    Attributes:
        name: the program and the words of the command.
        line: its arguments.
        needs: parts of the world that they name; () for a command that needs nothing to be there.
        reads: whether it only reads, and must create nothing.
        writes: options that make it write a file, where it can.
        links: servers that it talks to.
        makes: beginning of the paths that a command that reads may make: its output.
        ready: what it prints once it serves; "" where it ends by itself.
        long: why it is not run to its end.
        ends: exit statuses where nothing is wrong.
        several: whether it works on several items, each of which may be lost.
        reasons: why a situation cannot be.
    """

    name: str
    line: str = ""
    needs: tuple[str, ...] = ()
    reads: bool = False
    writes: str | None = None
    links: tuple[Link, ...] = ()
    makes: str | None = None
    ready: str = ""
    long: str = ""
    ends: tuple[int, ...] = (0,)
    several: bool = False
    reasons: Mapping[Situation, str] = field(default_factory=dict)

    def reason(self, situation: Situation) -> str:
        """Return why a situation cannot be; "" where it can."""
        if situation in self.reasons:
            return self.reasons[situation]
        if situation in OF_SERVERS and not self.links:
            return NO_SERVER
        if situation in OF_ITEMS and not self.several:
            return ONE_THING
        if situation in (Situation.DISK_FULL, Situation.NO_PERMISSION) and self.writes is None:
            return NO_FILE
        if situation is Situation.INTERRUPTED and not (self.ready or self.links):
            return SOON_OVER
        if situation in (Situation.OUTPUT_FULL, Situation.CLOSED_PIPE, Situation.NO_TERMINAL):
            return self.long
        if situation in (Situation.NOTHING, Situation.WRONG_DIRECTORY) and not self.needs:
            return self.long
        if situation is Situation.WRONG_DIRECTORY and not self.reads and "{config}" in self.line:
            return BEGINS
        return ""


_NO_ANSWERS = {
    situation: "the protocol has no such answer"
    for situation in (Situation.UNAUTHORIZED, Situation.TOO_MANY, Situation.SERVER_ERROR)
}
_RAY = Link("the cluster", "--ray 127.0.0.1:{port} --timeout 4", Protocol.TCP, reasons=_NO_ANSWERS)
_DATABASE = Link("the database", "--set data.url=mysql+pymysql://me@127.0.0.1:{port}/runs --timeout 4", Protocol.MYSQL)
_NEW_DATABASE = Link(
    "database for --migrate", "--migrate --url mysql+pymysql://me@127.0.0.1:{port}/runs --timeout 4", Protocol.MYSQL, ""
)
_INDEX = {"PIP_INDEX_URL": "{url}/simple", "PATH": "/usr/bin:/bin"}
_SETUP = {
    Situation.OUTPUT_FULL: "installs for minutes", Situation.CLOSED_PIPE: "installs for minutes",
    Situation.NO_TERMINAL: "installs for minutes", Situation.WRONG_DIRECTORY: "works in a directory of its own",
    Situation.NOTHING: "makes what it needs",
}  # fmt: skip


def _package(name: str) -> Row:
    """A command that a package of ours adds; without it, it says so."""
    reasons = dict.fromkeys((*OF_SERVERS, *OF_ITEMS), f"is in the package {PACKAGED[name]}, which has tests of its own")
    return Row(name, ends=(1,), reads=True, reasons=reasons)


def _module(name: str, options: str = "", links: tuple[Link, ...] = (), long: str = "", **more: object) -> Row:
    """A module of a run."""
    return Row(
        f"dart-train {name}", f"{{config}} {options}".strip(), ("prepared",), writes="--name new", links=links,
        long=long or "runs for minutes; the end-to-end tests run it without a terminal", **more,  # type: ignore[arg-type]
    )  # fmt: skip


def _data(name: str, options: str = "", **more: object) -> Row:
    """A command on a run's data that reads them."""
    needs = more.pop("needs", ("run",))
    return Row(
        f"dart-train {name}", f"{{config}} {options}".strip(), needs, reads=True, links=(_DATABASE,), **more,  # type: ignore[arg-type]
    )  # fmt: skip


_CLUSTER = Link("desktops", "--url {ws} --timeout 4")
_GYM = (
    Row("dart-gym certify", "{suite} --task fake/two-steps --repeat 1", ("suite",), 
        writes="--out certify --badge badge"),
    Row("dart-gym doctor", reads=True, writes="--json rows.json", ends=(0, 1)),
    Row("dart-gym evaluator install", "--location new", writes="", reasons=_SETUP, long="installs for minutes",
        links=(Link("the package index", "--timeout 2", variables=_INDEX),)),
    Row("dart-gym init", writes=""),
    Row("dart-gym mcp", reads=True, ends=(0, 1)),
    Row("dart-gym serve", "--listen ws://127.0.0.1:0 --desktops 1", ready="listening on",
        long="serves until it is stopped"),
    Row("dart-gym status", "--url ws://127.0.0.1:9", ("cluster",), reads=True, ends=(1,),
        links=(Link("the cluster", "--url {ws} --timeout 4", line=""),)),
    Row("dart-gym tasks check", "{tasks}", ("tasks",), reads=True, writes="--json rows.json"),
    _package("dart-gym tasks import"),
    Row("dart-gym tasks list", "{suite}", ("suite",), reads=True, writes="--json rows.json"),
    Row("dart-gym tasks mirror", "{tasks} --cache cache", ("tasks",), several=True,
        links=(Link("the web", "--cache cache --timeout 4", line="{fetch}",
                    variables={"DART_GYM_FETCH_HOSTS": "127.0.0.1"}),)),
    _package("dart-gym tasks new"),
    Row("dart-gym token", "me"),
)  # fmt: skip
_PLAY = "--policy random --max-steps 2"
_AGENT = (
    Row("dart-agent compare", "{a} {b}", ("evals",), reads=True, writes="--json rows.json"),
    Row("dart-agent eval", f"{{task}} --n 2 {_PLAY}", ("task",), writes="--out played --json scores.json", several=True,
        links=(Link("the model", CHAT, line="{task} --n 2"), _CLUSTER)),
    Row("dart-agent export", "{a} exported", ("evals",), writes=""),
    _package("dart-agent ground collect"),
    Row("dart-agent ground eval", "{items} --model {model} --text", ("items", "model"), writes="--json rows.json",
        links=(Link("the model", "--engine-url {url}/v1 --timeout 4"),)),
    _package("dart-agent ground explore"),
    Row("dart-agent ground train", "{items} --model {model} --out trained --steps 1 --batch-size 1", ("items", "model"),
        writes=""),
    Row("dart-agent import", "{results} imported", ("results",), writes="", several=True),
    Row("dart-agent init", writes=""),
    Row("dart-agent judge", "{a} --judge checkpoints", ("evals",), reads=True, writes="--json rows.json"),
    Row("dart-agent presets", "{preset}", ("preset",), reads=True, writes="--json rows.json"),
    Row("dart-agent run", f"{{task}} {_PLAY}", ("task",), writes="--out played",
        links=(Link("the model", CHAT, line="{task}"), _CLUSTER)),
    Row("dart-agent view", "{episode}", ("evals",), reads=True, writes="--output page.html", ready="http://",
        long="serves until it is stopped", links=(Link("the cluster", "--timeout 4", line="{ws}"),)),
)  # fmt: skip
_TRAIN = (
    Row("dart-train ablate", "{config} --switch pool=on,off --seeds 1", ("config",), writes="",
        long="runs for hours", links=()),
    Row("dart-train check-gpu", "--device cpu", writes="--scratch .", long="checks for minutes", ends=(0, 1)),
    _module("controls", long="runs for minutes",
            reasons=dict.fromkeys((Situation.DISK_FULL, Situation.NO_PERMISSION), "writes beside an ended run")),
    Row("dart-train data check", "{config}", ("run",), reads=True, writes="--json rows.json",
        links=(replace(_DATABASE, name="database of a run"), _NEW_DATABASE)),
    _data("data export", "out.tar", writes="", makes="place/out.tar"),
    Row("dart-train data import", "{config} {archive} --name new", ("run", "archive"), writes="", links=(_DATABASE,)),
    Row("dart-train engines install", writes="", reasons=_SETUP, long="installs for minutes",
        links=(Link("the package index", "--timeout 2", variables={**_INDEX, "DART_VLLM": "new"}),)),
    _module("evaluate", "--label x", links=(_CLUSTER,)),
    Row("dart-train init", writes=""),
    Row("dart-train parity", "{model}", ("model",), writes="--json rows.json", long="computes for minutes",
        reasons={Situation.DISK_FULL: "computes for minutes"},
        links=(Link("the engine", "--engine {url} --timeout 4"),)),
    Row("dart-train plan", "{config} --gpus 1 --gpu-memory 24 --model 3b", ("config",), reads=True, ends=(0, 1),
        writes="--json rows.json"),
    _module("process", "rollout", links=(
        replace(_CLUSTER, name="desktops of rollout"),
        replace(_CLUSTER, name="desktops of demonstrate", line="{config} demonstrate"),
        Link("database of data", f"--name new {_DATABASE.options}", Protocol.MYSQL, line="{config} data"),
    )),
    _data("report", writes="", makes="place/runs/mine/report", ends=(0, 1)),
    Row("dart-train run", "{config} --dry-run", ("config",), writes="--json run.json", links=(_RAY,), ends=(0,)),
    Row("dart-train status", "{run}", ("run",), reads=True, writes="--json rows.json", links=(_RAY, _DATABASE)),
    Row("dart-train stop", "{run}", ("run",), reads=True, links=(_RAY,)),
)  # fmt: skip
ROWS: tuple[Row, ...] = (*_GYM, *_AGENT, *_TRAIN)
