"""The one page: desktops that are watched, recorded episodes, curves, a person's turn. Its parts lie in `assets`.

Invariants:
    - The page may run its own script and style and nothing else: its Content-Security-Policy names their hashes.
    - It holds no secret; what it shows it asks for with the key of its address, or finds as a JSON block in itself.
"""

import base64
import functools
import hashlib
import json
import re
from importlib.resources import files
from typing import Any

HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_SCRIPTS = ("common", "live", "tree", "replay", "curves", "episodes", "compare", "play", "views")
_ESCAPED = {ord(mark): f"\\u{ord(mark):04x}" for mark in "<>&"}  # a JSON text in which no element begins or ends


@functools.cache
def page(*views: str) -> tuple[bytes, str]:
    """The page with views of "live", "episodes", "training" and "play", and the policy under which it may run."""
    html = render({"views": views})
    return html.encode(), content_policy(html)


def render(data: Any) -> str:
    """The page with JSON values in it: its views, or a whole episode and the policy, for a page that is a file."""
    assets = files(__package__).joinpath("assets")
    html = assets.joinpath("page.html").read_text(encoding="utf-8")
    html = html.replace("/*STYLE*/", assets.joinpath("page.css").read_text(encoding="utf-8"))
    scripts = [assets.joinpath(f"{name}.js").read_text(encoding="utf-8") for name in _SCRIPTS]
    html = html.replace("/*SCRIPTS*/", "\n".join(scripts))
    if "episode" in data:
        policy = content_policy(html, file=True)
        html = html.replace("<!--POLICY-->", f'<meta http-equiv="Content-Security-Policy" content="{policy}">')
    text = json.dumps(data, allow_nan=False).translate(_ESCAPED)
    return html.replace("<!--DATA-->", f'<script type="application/json" id="data">{text}</script>')


def content_policy(html: str, *, file: bool = False) -> str:
    """The Content-Security-Policy of a page: its own script and style, images in it; a `file` asks nobody. Pure."""
    found = {name: re.search(rf"<{name}>(.*?)</{name}>", html, re.DOTALL) for name in ("script", "style")}
    digests = {name: hashlib.sha256(one[1].encode()).digest() for name, one in found.items() if one}
    script, style = (f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests.values())
    own = f"default-src 'none'; script-src {script}; style-src {style}; base-uri 'none'; form-action 'none'; "
    return own + ("img-src data:" if file else "img-src blob:; connect-src 'self'; frame-ancestors 'none'")
