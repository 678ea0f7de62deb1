from __future__ import annotations

import json
import os
import string
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_gym.core.errors import ConfigurationError, PluginError
from dart_gym.core.suggestions import suggest
from dart_gym.utils.plugins import Registry, called_with, child_environment, has
from tests.helpers.packages import install

GROUP = "dart_gui.toys"
TOYS: Registry = Registry(
    "toy", GROUP, {"ball": "json:JSONDecoder", "json": "json", "top": 3, "lost": "no_module_of_ours:X"}, (has("play"),)
)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A directory on the path, and the working directory, each of its own."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    before = set(sys.modules)
    yield tmp_path / "site"
    for name in set(sys.modules) - before:
        del sys.modules[name]


def message(name: str, registry: Registry = TOYS) -> str:
    with pytest.raises(PluginError) as caught:
        registry.get(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_built_in_things_are_loaded_when_asked_for():
    assert TOYS.get("ball") is json.JSONDecoder
    assert TOYS.get("json") is json
    assert TOYS.get("top") == 3
    assert TOYS.describe() == dict.fromkeys(["ball", "json", "lost", "top"], "built in")


def test_a_package_adds_a_thing_which_is_imported_when_asked_for(site):
    install(site, "my-toys", {GROUP: {"kite": "kite_module:Kite"}}, {"kite_module": "class Kite:\n    play = print\n"})
    assert "kite" in TOYS.names() and TOYS.describe()["kite"] == "package my-toys"
    assert "kite_module" not in sys.modules
    assert TOYS.get("kite").__name__ == "Kite"


def test_a_module_or_an_object_may_be_a_thing(site):
    source = "def play(): pass\nclass Box:\n    class Kite:\n        play = print\n"
    install(site, "my-toys", {GROUP: {"whole": "kite_2", "nested": "kite_2:Box.Kite"}}, {"kite_2": source})
    assert TOYS.get("whole").play() is None
    assert TOYS.get("nested") is TOYS.get("whole").Box.Kite is TOYS.get("kite_2:Box.Kite")


def test_a_file_of_the_working_directory_is_found(site):
    with open("own_kite.py", "w") as file:
        file.write("class Kite:\n    play = print\n")
    assert TOYS.get("own_kite:Kite").__name__ == "Kite"
    assert os.getcwd() in child_environment()["PYTHONPATH"].split(os.pathsep)


@pytest.mark.parametrize(
    ("source", "value", "says"),
    [
        ("import no_such_library", "bad:Kite", ["ModuleNotFoundError: No module named 'no_such_library'"]),
        ("raise RuntimeError('two\\nlines')", "bad:Kite", ["RuntimeError: two lines"]),
        ("raise SystemExit(3)", "bad:Kite", ["SystemExit: 3"]),
        ("class Kite(:", "bad:Kite", ["SyntaxError"]),
        ("class Kites: pass", "bad:Kite", ["bad has no Kite", "did you mean 'Kites'?"]),
        ("class Kite: pass", "bad:Kite", ["lacks play", "docs/guides/plugins.md"]),
        ("Kite = 3", "bad:Kite", ["lacks play"]),
    ],
)
def test_a_bad_plugin_is_one_line_with_package_reason_and_next_step(site, source, value, says):
    install(site, "bad-toys", {GROUP: {"kite": value}}, {"bad": source})
    text = message("kite")
    for part in ["the toy 'kite' of the package 'bad-toys' (bad:Kite)", *says]:
        assert part in text
    assert "pip uninstall bad-toys" in text or "docs/guides/plugins.md" in text
    assert "'bad:Kite'" in message("bad:Kite")


def test_a_package_cannot_replace_what_is_built_in(site):
    install(site, "sly-toys", {GROUP: {"ball": "sly:Ball"}})
    text = message("ball")
    assert "'sly-toys'" in text and "'ball', which is built in" in text and "rename" in text
    assert TOYS.get("top") == 3, "other names go on"


def test_two_packages_cannot_share_a_name(site):
    install(site, "toys-a", {GROUP: {"kite": "kite_a:Kite"}})
    install(site, "toys-b", {GROUP: {"kite": "kite_b:Kite"}})
    text = message("kite")
    assert "'toys-a' and 'toys-b' both add" in text and "uninstall one" in text and "'kite_a:Kite'" in text
    assert TOYS.describe()["kite"] == "package toys-a, package toys-b"


def test_a_package_that_stands_twice_on_the_path_is_one(site, tmp_path, monkeypatch):
    source = {"kite_twice": "class Kite:\n    play = print\n"}
    install(site, "my-toys", {GROUP: {"kite": "kite_twice:Kite"}}, source)
    install(tmp_path / "other", "my-toys", {GROUP: {"kite": "kite_twice:Kite"}}, source)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "other"), *sys.path])
    assert TOYS.get("kite").__module__ == "kite_twice"


def test_unknown_names_get_a_suggestion(site):
    install(site, "my-toys", {GROUP: {"kite": "kite_module:Kite"}})
    assert "unknown toy 'bal'; did you mean 'ball'?" in message("bal")
    assert "did you mean 'kite'?" in message("kites")
    assert "known: ball, json, top, lost, kite" in message("qqqqq") and "module:Class" in message("qqqqq")
    assert "run from its directory or install its package" in message("no_such_module_at_all:Kite")
    assert "__main__" in message("__main__:Kite") and "file of its own" in message("__main__:Kite")
    assert issubclass(PluginError, ConfigurationError)


@pytest.mark.parametrize(
    ("thing", "says"),
    [
        (lambda a, b, *, c: 0, None),
        (lambda *args, **kwargs: 0, None),
        (lambda a, b, c, d=1: 0, None),
        (lambda a, b: 0, "is called with (logprobs, mask, c=), but takes (a, b): got an unexpected keyword"),
        (lambda a, *, c: 0, "too many positional"),
        (lambda a, b, c, d: 0, "missing a required argument: 'd'"),
        (3, "is not a class or function"),
        (min, None),
    ],
)
def test_a_signature_is_checked(thing, says):
    reason = called_with("logprobs", "mask", keywords=("c",))(thing)
    assert reason is None if says is None else says in reason


class Caller:
    def __call__(self, group):
        return group

    @staticmethod
    def plain(a):
        return a

    @classmethod
    def of_class(cls, a):
        return a

    def own(self, a):
        return a


@pytest.mark.parametrize("name", ["__call__", "plain", "of_class", "own"])
def test_signatures_of_methods_are_checked_of_classes_and_of_objects(name):
    for found in (Caller, Caller()):
        assert has(**{name: ("a",)})(found) is None
        assert f"has a {name} that is called with" in has(**{name: ("a", "b")})(found)
    assert "lacks __call__" in has("__call__")(type("Silent", (), {}))


def test_a_child_imports_what_its_parent_can(tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("VALUE = 7\n")
    beside = [path for path in sys.path if f"site-packages{os.sep}" not in path]  # packages add some: ray is one
    monkeypatch.setattr(sys, "path", [*beside, str(tmp_path)])
    code = "import only_here, sys; print(only_here.VALUE, len(sys.path))"
    found = subprocess.run(
        [sys.executable, "-c", code], env=child_environment({}), capture_output=True, text=True, cwd="/", check=True
    )
    assert found.stdout.startswith("7")
    nothing = subprocess.run([sys.executable, "-c", code], env={}, capture_output=True, cwd="/")
    assert nothing.returncode == 1
    assert child_environment({"PYTHONPATH": "/x", "A": "b"})["PYTHONPATH"].endswith(f"{os.pathsep}/x")
    given = child_environment({})["PYTHONPATH"].split(os.pathsep)
    assert [path for path in given if any(word in path for word in ("site-packages", "lib-dynload", ".zip"))] == []


@given(st.text(string.ascii_letters + string.digits + "_-.:/ ", max_size=20))
def test_any_name_is_found_or_explained(name):
    try:
        TOYS.get(name)
        assert name in TOYS.built_in
    except PluginError as error:
        assert "\n" not in str(error) and "toy" in str(error)
    except ModuleNotFoundError:
        assert name == "lost"


@given(st.text(max_size=8), st.lists(st.text(max_size=8), max_size=5))
def test_suggestions_are_of_the_known(name, known):
    text = suggest(name, known)
    assert text.startswith(("did you mean ", "known: "))
    assert suggest("xvbf", ["xvfb", "fake"]) == "did you mean 'xvfb'?"
    assert suggest("q", [], otherwise="see there") == "see there" and suggest("q", []) == "known: none"
    assert suggest("ab", ["abc", "abd"], count=2) == "did you mean 'abd' or 'abc'?"
