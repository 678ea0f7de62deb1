"""The evaluator worker: runs OSWorld's unmodified getters and metrics in the environment of `environment.py`.

Started by `worker.py`, normally in a sandbox, with its settings as JSON in the first argument. It reads requests from
standard input and answers each with one line of JSON on what was standard output; what metrics print goes to standard
error. Imports nothing of this package: it is the only part that runs in that environment.

Invariants:
    - Only the modules that a task's checks need are imported: one of them alone would cost seconds.
    - What cannot be computed here (there is no OCR, no Google Drive) is an error, never a quiet 0.
    - What the agent has left and no metric can read is worth 0, never an error: an agent that fails would choose that.
      `blame.py` has the rules.
"""

import ast
import functools
import gc
import http.server
import importlib
import importlib.abc
import importlib.machinery
import inspect
import json
import math
import numbers
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types

PACKAGES = ("metrics", "getters")
ABSENT = {"easyocr": "text recognition (easyocr)", "pydrive": "Google Drive (pydrive)"}
WITHOUT = {"compare_image_text": ABSENT["easyocr"], "get_googledrive_file": ABSENT["pydrive"]}
RETRY_INTERVAL_S = 0.05  # a missing file is asked for three times
CHUNK = 1 << 16
LONGEST_STATE = 300
LONGEST_OUTPUT, LONGEST_ERRORS = 1 << 20, 2000  # bytes of a program's
HOME = "/home/user"
neighbours: dict = {}  # modules by name
GIVEN_BY_THE_TASK = ("rule", "rule_relativeTime", "cloud_file", "cache_file", "googledrive_file")  # not by the desktop
OURS = (ImportError, NotImplementedError, NameError)  # of OSWorld's own code, and what it imports is missing


class Unavailable(Exception):
    """A check needs something that this environment leaves out."""


class AbsentModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Lets modules be imported that import what is left out, as long as they do not use it."""

    def find_spec(self, name, path=None, target=None):
        """Claim the modules that are left out, and what lies below them."""
        if name.split(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        """A module whose names are all there and of no use."""
        return _AbsentModule(spec.name)

    def exec_module(self, module):
        """Nothing to execute."""


class _AbsentModule(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        what = ABSENT[self.__name__.split(".")[0]]

        def absent(*args, **kwargs):
            raise Unavailable(f"the evaluator is installed without {what}")

        return absent


def make_packages_lazy():
    """Have `desktop_env.evaluators.metrics` import only those of its modules that are asked for."""
    import desktop_env

    root = desktop_env.__path__[0]
    for name in PACKAGES:
        full = f"desktop_env.evaluators.{name}"
        package = types.ModuleType(full)
        package.__path__ = [os.path.join(root, "evaluators", name)]
        sys.modules[full] = package


def find_function(package, name):
    """Return a metric or getter by its public name.

    Raises:
        Unavailable: if there is no such function, or it needs a package that is left out.
    """
    if name in WITHOUT:
        raise Unavailable(f"{name} needs {WITHOUT[name]}, which the evaluator is installed without")
    full = f"desktop_env.evaluators.{package}"
    path = os.path.join(sys.modules[full].__path__[0], "__init__.py")
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return getattr(importlib.import_module(f"{full}.{node.module}"), alias.name)
    raise Unavailable(f"desktop-env has no {package[:-1]} {name!r}")


class Environment:
    """What getters ask of OSWorld's `DesktopEnv`."""

    enable_proxy = current_use_proxy = False
    vm_platform = "Linux"
    vm_ip = "127.0.0.1"

    def __init__(self, settings):
        from desktop_env.controllers.python import PythonController

        ports = settings["ports"]
        self.server_port = ports["server"]
        self.chromium_port = ports.get("chromium", 9222)
        self.vlc_port = ports.get("vlc", 8080)
        self.cache_dir = settings["cache"]
        self.controller = PythonController(self.vm_ip, self.server_port)
        self.controller.retry_interval = RETRY_INTERVAL_S

    @property
    def vm_screen_size(self):
        """Width and height, as the server says."""
        return self.controller.get_vm_screen_size()


class Worker:
    """Answers requests about one evaluation."""

    def __init__(self, settings):
        self.env, self.sites_port = Environment(settings), settings["sites_port"]
        self.states = []  # what result getters gave so far

    def answer(self, request):
        """One reply; what is raised becomes an error in it."""
        try:
            return getattr(self, "do_" + request["op"])(request)
        except MemoryError:
            return {"error": "MemoryError", "message": "it needs more memory than the evaluator may use"}
        except Exception as error:
            return {"error": type(error).__name__, "message": str(error)}

    def do_load(self, request):
        """Import what checks will need, ahead of them."""
        for name in request["metrics"]:
            find_function("metrics", name)
        for name in request["getters"]:
            find_function("getters", "get_" + name)
        return {}

    def do_check(self, request):
        """The score of one check: result, expected state, metric, as `DesktopEnv.evaluate` does."""
        metric = find_function("metrics", request["func"])
        try:
            state = self.left(request["result"])
        except FileNotFoundError as error:
            if request["conj"] == "and" or not self.states:
                return {"score": 0.0, "state": f"no such file: {error}"}
            state = self.states[-1]  # the original goes on with the state of the check before
        self.states.append(state)
        others = [self.expected(request["expected"])] if request["expected"] else []
        failure = None
        try:
            value = number(metric(state, *others, **request["options"]))
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"the metric gave {value}, which is not in [0, 1]")
        except Unavailable:
            raise
        except Exception as error:
            failure = error
        if failure is not None:
            failure.__traceback__ = failure.__context__ = failure.__cause__ = None  # they hold what it has read,
            gc.collect()  # which may be all the memory that there is
            if not neighbours["metric_control"].works_without_the_agent(scored(metric), others, request["options"]):
                raise failure
            words = f"not to be read ({type(failure).__name__}: {failure}): {state!r}"
            return {"score": 0.0, "state": words[:LONGEST_STATE]}
        return {"score": value, "state": repr(state)[:LONGEST_STATE]}

    def left(self, config):
        """Return what a getter finds; None where the desktop has nothing that it can read."""
        getter = find_function("getters", "get_" + config["type"])
        try:
            return self.get(config)
        except (Unavailable, FileNotFoundError):
            raise
        except Exception as error:
            if config["type"] in GIVEN_BY_THE_TASK or is_ours(error, config, getter):
                raise
            print(f"nothing to be read by {config['type']}: {type(error).__name__}: {error}", file=sys.stderr)
            return None

    def expected(self, config):
        """Return what the result is compared with, which some tasks have on the desktop, too."""
        try:
            return self.left(config)
        except FileNotFoundError:
            if config["type"] in GIVEN_BY_THE_TASK:
                raise
            return None

    def do_program(self, request):
        """Run a program that came with a task, beside a copy of the desktop's files at their paths."""
        archive = neighbours["desktop_archive"]
        if request["files"]:
            try:
                left_out = archive.unpack(request["files"], "/", request["apart"], request["most_bytes"])
            except archive.Spoiled as error:
                return {"spoiled": str(error)}
            print(f"{left_out} files of the desktop were left out", file=sys.stderr)
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=request["sites"])  # /<site>/go
        sites = http.server.ThreadingHTTPServer(("127.0.0.1", self.sites_port), handler)
        threading.Thread(target=sites.serve_forever, daemon=True).start()
        pipe, environment = subprocess.PIPE, {**os.environ, **request["variables"]}
        with tempfile.TemporaryFile(dir=self.env.cache_dir) as errors:
            program = subprocess.Popen(
                request["command"], stdin=subprocess.DEVNULL, stdout=pipe, stderr=errors, env=environment, cwd=HOME
            )
            output = program.stdout.read(LONGEST_OUTPUT + 1)  # type: ignore[union-attr]  # it is a pipe
            if len(output) > LONGEST_OUTPUT:
                program.kill()
                return {"status": None, "output": "", "errors": f"it printed more than {LONGEST_OUTPUT >> 20} MiB"}
            status = program.wait()
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - LONGEST_ERRORS))
            last = errors.read().decode(errors="replace")
        return {"status": status, "output": output.decode(errors="replace"), "errors": last}

    def get(self, config):
        """Fetch a state."""
        return find_function("getters", "get_" + config["type"])(self.env, config)


def is_ours(error, config, getter):
    """Return whether a getter failed because of the task or its own code, and not because of the desktop.

    What it says of a network is no evidence: here it reaches nothing but the desktop's ports, where what the agent has
    put in the place of a browser or player answers with any words, or leads elsewhere.
    """
    if isinstance(error, KeyError) and error.args and error.args[0] not in config:
        name = re.escape(repr(error.args[0]).strip("'\""))
        return re.search(rf"config(\[|\.get\()\s*['\"]{name}['\"]", inspect.getsource(getter)) is not None
    if isinstance(error, UnboundLocalError) or not isinstance(error, OURS):
        return False
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    own = [name for name in files if not name.startswith("<frozen importlib")][-1]
    return own == inspect.getsourcefile(inspect.unwrap(getter))  # a library raises them for odd content


def scored(metric):
    """A metric that gives a number, or raises."""

    @functools.wraps(metric)
    def gives_a_number(*arguments, **options):
        return number(metric(*arguments, **options))

    return gives_a_number


def number(value):
    """A metric's value as a float. Raises `ValueError` for what is no number, such as None or nan."""
    if isinstance(value, (numbers.Number, bool)) or type(value).__module__ == "numpy":
        if math.isnan(value := float(value)):
            raise ValueError("the metric gave nan")
        return value
    raise ValueError(f"the metric gave {value!r}, which is no number")


def relay(path, port):
    """Lead a port of this loopback to a Unix socket; returns the port (any free one for 0)."""
    listener = socket.create_server(("127.0.0.1", port))

    def serve():
        while True:
            client, _ = listener.accept()
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(path)
            except OSError:
                client.close()  # as if nothing listened there
                continue
            threading.Thread(target=pump, args=(client, server), daemon=True).start()
            threading.Thread(target=pump, args=(server, client), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    return listener.getsockname()[1]


def pump(source, sink):
    """Copy until one side ends; a broken connection ends both ways."""
    try:
        while data := source.recv(CHUNK):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)  # closing would not wake the thread that reads from it
            except OSError:
                pass  # it is closed already


def limit(memory_bytes, file_bytes, processes):
    """Limits that hold for this process and each of its children."""
    limits = {"DATA": memory_bytes, "FSIZE": file_bytes, "NPROC": processes, "CORE": 0}
    for name, value in limits.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))


def import_neighbours():
    """Import what lies beside this file, which is on no path of Python's."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    for name in ("desktop_archive", "metric_control"):
        neighbours[name] = importlib.import_module(name)
    del sys.path[0]


def main():
    """Answer requests until standard input ends."""
    settings = json.loads(sys.argv[1])
    import_neighbours()
    limit(settings["memory_bytes"], settings["file_bytes"], settings["processes"])
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.meta_path.append(AbsentModules())
    make_packages_lazy()
    if settings["numba_cache"] and os.path.isdir(settings["numba_cache"]):
        os.environ["NUMBA_CACHE_DIR"] = os.path.join(settings["scratch"], "numba")  # it must be writable
        shutil.copytree(settings["numba_cache"], os.environ["NUMBA_CACHE_DIR"], dirs_exist_ok=True)
    settings["ports"] = {name: relay(path, port) for name, (path, port) in settings["sockets"].items()}
    os.chdir(settings["scratch"])
    worker = Worker(settings)
    for line in sys.stdin:
        replies.write(json.dumps(worker.answer(json.loads(line))) + "\n")
        replies.flush()
    os._exit(0)  # threads of relays and of metrics are not waited for


if __name__ == "__main__":
    main()
