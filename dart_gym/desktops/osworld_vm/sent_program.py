"""Modules of this package as one program for another machine's Python: `python -c <program> <module> <arguments>`.

One implementation serves both machines. Only modules that this package holds are sent, never what a model wrote.
"""

import base64
import functools
import json
import zlib
from collections.abc import Sequence
from importlib import resources

SENT = (
    "dart_gym.core.errors",
    "dart_gym.desktops.input.key_map",
    "dart_gym.desktops.input.keyboard",
    "dart_gym.desktops.xvfb.x_client",
    "dart_gym.desktops.xvfb.x_keyboard_state",
    "dart_gym.desktops.xvfb.x_keys",
    "dart_gym.desktops.xvfb.x_hands",
    "dart_gym.desktops.osworld_vm.remote_input",
)
"""The modules of `remote_input`; they need Python 3.10 and python-xlib."""

_LOADER = """\
import base64, importlib, importlib.abc, importlib.util, json, sys, zlib
class Sent(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    sources = json.loads(zlib.decompress(base64.b85decode({packed!r})))
    def find_spec(self, name, path=None, target=None):
        known = name in self.sources or self.is_package(name)
        return importlib.util.spec_from_loader(name, self) if known else None
    def is_package(self, name):
        return any(other.startswith(name + ".") for other in self.sources)
    def get_source(self, name):
        return self.sources.get(name, "")
sys.meta_path.insert(0, Sent())
sys.exit(importlib.import_module({name!r}).main(json.loads(sys.argv[1])))
"""


def module_source(name: str) -> str:
    """Return the source of a module of this package."""
    package, _, module = name.rpartition(".")
    return resources.files(package).joinpath(f"{module}.py").read_text(encoding="utf-8")


@functools.cache
def sent_program(names: Sequence[str] = SENT) -> str:
    """Return a program that calls `main` of the last of the named modules with its argument, a JSON value."""
    sources = json.dumps({name: module_source(name) for name in names})
    packed = base64.b85encode(zlib.compress(sources.encode(), 9)).decode()
    return _LOADER.format(packed=packed, name=names[-1])
