"""Keeps pages of the web away from what listens on this machine: the one check of every HTTP and websocket face.

A browser says where a page comes from (`Origin`), and by which name it asked for this machine (`Host`). A page that
asks by a name of its own that leads here (DNS rebinding) sends no foreign Origin, but that name as Host.
"""

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

FOREIGN_PAGE = "web pages may not use this"
FOREIGN_NAME = "ask for this by a name of its machine, such as 127.0.0.1: it listens for this machine alone"


def refusal(origins: Sequence[str], hosts: Sequence[str], *, loopback: bool, own_page: bool = False) -> str:
    """Why a request is not answered; "" where it may be. Pure.

    To a `loopback` address only names of this machine lead; an `own_page`, by plain HTTP, sends more than GET.
    """
    if origins and not (own_page and loopback and list(origins) == [f"http://{host}" for host in hosts]):
        return FOREIGN_PAGE
    if loopback and (len(hosts) != 1 or not names_this_machine(hosts[0])):
        return FOREIGN_NAME
    return ""


def names_this_machine(host: str) -> bool:
    """Return whether the Host of a request is a loopback name or address. Pure."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
