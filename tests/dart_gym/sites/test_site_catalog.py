"""Which sites there are, and what is wrong with a folder that is none: one line each, and the others go on."""

import json

import pytest

from dart_gym.core.errors import ConfigurationError
from dart_gym.sites.site_catalog import find_site, read_site, site_folders
from dart_gym.sites.site_state import SiteState, changes, merged


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A folder in CUA-Gym-Hub's layout."""
    monkeypatch.setenv("DART_GYM_SITES", str(tmp_path))

    def make(name, **files):
        folder = tmp_path / "websites" / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in files.items():
            text = content if isinstance(content, str) else json.dumps(content)
            (folder / file.replace("__", ".")).write_text(text)
        return folder

    return make


@pytest.mark.parametrize("name", ["mail", "shop", "board"])
def test_bundled_sites_are_there(name):
    site = find_site(name)
    assert (site.host, site.url, site.command) == (f"{name}.test", f"http://{name}.test", ())
    assert isinstance(site.template, dict)


@pytest.mark.parametrize("spelling", ["google_docs_mock", "google-docs", "GOOGLE_DOCS", "google_docs"])
def test_a_site_of_the_hub_is_found_by_any_spelling(hub, spelling):
    hub("google_docs_mock", package__json={"scripts": {"preview": "vite preview"}})
    site = find_site(spelling)
    assert site.host == "google-docs.test" and site.command[:3] == ("npm", "run", "preview")


@pytest.mark.parametrize(
    "host", ["mail.google.com", "localhost", "intranet", "10.0.0.1", "test", "a b.test", "-x.test", ".test"]
)
def test_a_name_that_may_be_real_is_refused(hub, host):
    hub("webmail", index__html="<p>", site__json={"host": host})
    with pytest.raises(ConfigurationError, match=r"the site 'webmail'") as error:
        find_site("webmail")
    assert "\n" not in str(error.value)
    assert find_site("mail").host == "mail.test"  # the others go on


def test_the_operator_may_name_a_real_host(hub, monkeypatch):
    folder = hub("webmail", index__html="<p>", site__json={"host": "mail.google.com"})
    assert read_site(folder, ["mail.google.com"]).host == "mail.google.com"
    monkeypatch.setenv("DART_GYM_SITE_HOSTS", "other.com mail.google.com")
    assert find_site("webmail").host == "mail.google.com"
    with pytest.raises(ConfigurationError, match=r"mail.google.com may be a real host; next step: end it in .test"):
        read_site(folder, [])


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"site__json": "{"}, "cannot be read"),
        ({"site__json": "[]"}, "cannot be read"),
        ({"site__json": {"host": 3}}, "must be text"),
        ({"site__json": {"command": [1]}}, "must be text"),
        ({"site__json": {"command": ["x"], "port": "80"}}, "must be text"),
        ({"site__json": {}}, "neither index.html nor a command"),
        ({"index__html": "<p>", "state__json": "{"}, "cannot be read"),
    ],
)
def test_a_broken_site_says_in_one_line_what_is_wrong(hub, files, reason):
    hub("broken", **files)
    with pytest.raises(ConfigurationError, match=reason) as error:
        find_site("broken")
    assert "\n" not in str(error.value) and "'broken'" in str(error.value)


def test_an_unknown_site_suggests_a_near_one():
    with pytest.raises(ConfigurationError, match="did you mean 'board'"):
        find_site("bord")


def test_places_that_are_not_there_are_no_sites(tmp_path):
    assert site_folders(f"{tmp_path}/none:{tmp_path}").keys() == {"mail", "shop", "board"}


def test_the_state_api_sets_merges_and_resets():
    state = SiteState()
    state.post({"action": "set", "state": {"a": {"b": 1}, "c": 2}})
    state.post({"action": "set_current", "state": {"a": {"d": 3}}, "merge": True})
    assert state.go() == {
        "initial_state": {"a": {"b": 1}, "c": 2},
        "current_state": {"a": {"b": 1, "d": 3}, "c": 2},
        "state_diff": {"a": {"modified": {"b": 1, "d": 3}}},
    }
    state.post({"action": "reset"})
    assert state.current == {"a": {"b": 1}, "c": 2} and state.go()["state_diff"] == {}
    for bad in ({"action": "other", "state": {}}, {"action": "set"}):
        with pytest.raises(ValueError, match="an action is"):
            state.post(bad)


def test_changes_name_the_deepest_place_and_tell_true_from_one():
    before, after = {"a": {"b": 1, "c": [1]}, "d": 1, "e": 0}, {"a": {"b": 2, "c": [1]}, "d": True, "f": {}}
    assert changes(before, after) == {"a.b": 2, "d": True, "e": None, "f": {}}
    assert changes(None, {"a": 1}) == {"": {"a": 1}}
    assert merged({"a": [1], "b": {"c": 1}}, {"a": [2], "b": {"d": 2}}) == {"a": [2], "b": {"c": 1, "d": 2}}
