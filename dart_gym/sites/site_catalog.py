"""Which sites there are: the bundled ones, and those in the folders that `DART_GYM_SITES` names.

A site is a folder: `index.html` makes it pages, with the state in `state.json` that episodes begin with;
`package.json`, as in CUA-Gym-Hub's `websites/<app>_mock`, makes it a program that is started once for a server.
`site.json` may hold `host`, `command` (a program's words, "{port}" in one of them) and `port` (else any free one).

Invariants:
    - A site leads nowhere real: its host ends in a reserved name (RFC 2606 and 6761), unless the operator named the
      host in `DART_GYM_SITE_HOSTS`.
    - A folder that is no proper site is a problem of that site alone, said when it is asked for.
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dart_gym.core.errors import ConfigurationError
from dart_gym.core.suggestions import suggest

FOLDERS_VARIABLE = "DART_GYM_SITES"
HOSTS_VARIABLE = "DART_GYM_SITE_HOSTS"
RESERVED = ("test", "example", "invalid", "localhost")
_BUNDLED = Path(__file__).with_name("bundled")
_HOST = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)+")
_HUB_COMMAND = ("npm", "run", "preview", "--", "--host", "127.0.0.1", "--port", "{port}", "--strictPort")


@dataclass(frozen=True, slots=True)
class Site:
    """One site; `command` is empty where it is pages alone."""

    name: str
    host: str
    folder: Path
    command: tuple[str, ...] = ()
    port: int = 0

    @property
    def url(self) -> str:
        """Its address as programs of a desktop see it, without a slash at the end."""
        return f"http://{self.host}"

    @property
    def template(self) -> Any:
        """Return the state in `state.json`, whose "$parameters" a seed chooses, or None without such a file."""
        file = self.folder / "state.json"
        return json.loads(file.read_bytes()) if not self.command and file.is_file() else None


def find_site(name: str) -> Site:
    """The site of a name, in any of its spellings (`google-docs`, `google_docs_mock`). Raises `ConfigurationError`."""
    folders, key = site_folders(os.environ.get(FOLDERS_VARIABLE, "")), _plain(name)
    if key not in folders:
        hint = suggest(key, sorted(folders))
        raise ConfigurationError(f"there is no site {name!r}; {hint} (or let {FOLDERS_VARIABLE} name its folder)")
    return read_site(folders[key], os.environ.get(HOSTS_VARIABLE, "").split())


def site_folders(places: str) -> dict[str, Path]:
    """Folder of each site by name: bundled ones, and below the places, separated by colons, or their `websites`."""
    found: dict[str, Path] = {}
    for place in [*map(Path, filter(None, places.split(os.pathsep))), _BUNDLED]:
        below = place / "websites" if (place / "websites").is_dir() else place
        for folder in sorted(below.iterdir()) if below.is_dir() else ():
            if any((folder / file).is_file() for file in ("site.json", "index.html", "package.json")):
                found.setdefault(_plain(folder.name), folder)
    return found


def _plain(name: str) -> str:
    return name.lower().removesuffix("_mock").replace("_", "-")


def read_site(folder: Path, allowed: list[str]) -> Site:
    """Read the site in a folder; `allowed` are hosts besides the reserved ones.

    Raises:
        ConfigurationError: if the site is malformed; the message names what is wrong.
    """
    name = _plain(folder.name)
    try:
        fields = json.loads((folder / "site.json").read_bytes()) if (folder / "site.json").is_file() else {}
        default = _HUB_COMMAND if (folder / "package.json").is_file() else ()
        host = fields.get("host", f"{name}.test")
        command = fields.get("command", default)
        port = fields.get("port", 0)
        site = Site(name, host, folder.absolute(), tuple(command), port)
        if not all(isinstance(word, str) for word in (host, *command)) or type(port) is not int:
            raise ValueError("'host' and the words of 'command' must be text, and 'port' a number")
        if not command and not (folder / "index.html").is_file():
            raise ValueError("it has neither index.html nor a command")
        _ = site.template
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigurationError(f"the site {name!r} in {folder} cannot be read: {error}") from error
    if not _HOST.fullmatch(host):
        raise ConfigurationError(f"the site {name!r} in {folder}: {host!r:.300} is no name of a host")
    if host.rpartition(".")[2] not in RESERVED and host not in allowed:
        raise ConfigurationError(
            f"the site {name!r}: {host} may be a real host; next step: end it in .{', .'.join(RESERVED)}, or "
            f"name it in {HOSTS_VARIABLE}"
        )
    return site
