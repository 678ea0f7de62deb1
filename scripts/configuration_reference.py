"""Writes docs/reference/configuration.md and configs/schema.json, both from the classes that read a configuration.

`python scripts/configuration_reference.py` writes them; a test compares them with what this would write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from dart_gym.cluster.server.server_settings import ServerSettings
from dart_gym.core.section import Section, subsection
from dart_train.config.config_schema import config_schema
from dart_train.config.run_config import DEFAULTS, SAME, RunConfig

ROOT = Path(__file__).parents[1]
PAGE, SCHEMA = ROOT / "docs" / "reference" / "configuration.md", ROOT / "configs" / "schema.json"
EXAMPLES = {"cluster": "dart_osworld_7b", "agent": "dart_osworld_7b"}
NAMES = {int: "whole number", float: "number", bool: "true or false", str: "text", Path: "path", NoneType: "null"}
INTRODUCTION = """# Configuration

<!-- Written by scripts/configuration_reference.py from the classes that read a configuration. -->

A run is described by one YAML file; `configs/` has some to start from. Every key is listed here with its type, its
default, and what it means. An unknown key, and a value that cannot be meant, is an error that names the key and
suggests the one that was meant.

```bash
dart-train run configs/quickstart.yaml --dry-run --show                 # what all keys come to; nothing is started
dart-train run configs/quickstart.yaml --set rollout.workers=2 --set trainer.learning_rate=1e-4
```

`--set KEY=VALUE` overrides a key of the file; values are YAML. Editors that know YAML's language server complete and
check keys by `configs/schema.json`, which the first line of the files in `configs/` names.

Some values follow others unless they are set:

{same}

Keys that name a thing with several makes (formats, providers of desktops, engines and so on) take a built-in name,
a name that an installed package adds, or `module:Class`.
"""


def main() -> None:
    """Write both files."""
    PAGE.write_text(page(), encoding="utf-8")
    SCHEMA.write_text(schema(), encoding="utf-8")


def schema() -> str:
    """The JSON schema of a run's configuration."""
    return json.dumps(config_schema(), indent=1, ensure_ascii=False) + "\n"


def page() -> str:
    """The page of all keys."""
    same = "\n".join(f"- `{target}` is `{source}`." for target, source in DEFAULTS)
    parts = [INTRODUCTION.format(same=same), "## The run\n", table("", plain_fields(RunConfig))]
    for name, field in RunConfig.model_fields.items():
        section = subsection(field.annotation)
        if section is not None:
            parts += list(section_parts(name, section))
    parts += [SERVE, table("cluster", plain_fields(ServerSettings, beside=ServerSettings.__base__))]
    return "\n".join(parts).rstrip() + "\n"


SERVE = """## `dart-gym serve`

The keys of `cluster` but `url`, and these, can stand in a file of their own: `dart-gym serve --config FILE`. A run's
configuration does as well: its `cluster` is read. Each key is an option too, with dashes for underscores, without the
unit of seconds, and in the singular where it may be repeated: `drain_s` is `--drain`, `osworld_urls` is
`--osworld-url`.
"""


def section_parts(path: str, section: type[Section]) -> Iterator[str]:
    """Heading, example and table of a section, then of those in it."""
    yield f"{'#' * (2 + path.count('.'))} `{path}`\n"
    yield doc(section) + "\n"
    if "." not in path:
        yield example(path)
    fields = plain_fields(section)
    yield table(path, fields)
    for name, field in section.model_fields.items():
        below = subsection(field.annotation)
        if below is not None:
            yield from section_parts(f"{path}.{name}", below)


def doc(section: type[Section]) -> str:
    """A class's docstring as a paragraph."""
    return " ".join((section.__doc__ or "").split())


def example(path: str) -> str:
    """A section as a shipped configuration has it, comments and all."""
    text = (ROOT / "configs" / f"{EXAMPLES.get(path, 'quickstart')}.yaml").read_text(encoding="utf-8")
    block = re.search(rf"^{path}:.*\n(?:[ #].*\n|\n(?=[ ]))*", text, re.MULTILINE)
    return f"```yaml\n{block[0].rstrip()}\n```\n" if block else ""


def plain_fields(section: type[Section], beside: type | None = None) -> dict[str, FieldInfo]:
    """Fields that hold values, not sections; `beside`: without those of this base."""
    known = getattr(beside, "model_fields", {})
    return {
        name: field
        for name, field in section.model_fields.items()
        if name not in known and not field.exclude and (subsection(field.annotation) is None or name == "tasks")
    }


def table(path: str, fields: dict[str, FieldInfo]) -> str:
    """One row for each field of the section at a path."""
    followed = dict(DEFAULTS)
    copies = {target for target, *_ in SAME}  # no one sets them
    rows = ["| key | type | default | |", "|---|---|---|---|"]
    for name, field in fields.items():
        if f"{path}.{name}" in copies:
            continue
        source = followed.get(f"{path}.{name}")
        begins = f"that of `{source}`" if source else default(field)
        cells = (f"`{name}`", kind(field.annotation) + limits(field), begins, field.description or "")
        rows.append("| " + " | ".join(re.sub(r"\s+", " ", cell).replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def kind(annotation: Any) -> str:
    """A type in words."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return " or ".join(kind(part) for part in sorted(inside, key=lambda part: part is NoneType))
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in inside)
    if origin in (list, tuple):
        return f"list of {kind(inside[0])}"
    if origin is dict or annotation is dict:
        return "mapping"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return ", ".join(f"`{choice.value}`" for choice in annotation)
    return NAMES.get(annotation) or {list: "list", Any: "any"}.get(annotation) or "mapping"


def limits(field: FieldInfo) -> str:
    """The range of a number."""
    words = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    found = [
        f"{sign} {value:g}"
        for item in field.metadata
        for name, sign in words.items()
        if (value := getattr(item, name, None)) is not None
    ]
    return f" {', '.join(found)}" if found else ""


def default(field: FieldInfo) -> str:
    """The default as YAML."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    value = value.value if isinstance(value, Enum) else value
    if isinstance(value, tuple):
        value = [item.value if isinstance(item, Enum) else item for item in value]
    return f"`{json.dumps(value)}`"


if __name__ == "__main__":
    main()
