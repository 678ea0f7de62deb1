"""The JSON schema of a run's configuration, by which editors complete and check it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from dart_gym.core.section import Section, subsection
from dart_train.config.run_config import SAME, RunConfig


def config_schema() -> dict[str, Any]:
    """Return the schema of a run's configuration, with the keys that a user may set."""
    found = RunConfig.model_json_schema()
    for section in sections(RunConfig):
        known = found["$defs"][section.__name__]["properties"] if section is not RunConfig else found["properties"]
        for name in [name for name, field in section.model_fields.items() if field.exclude]:
            known.pop(name, None)
    for target, *_ in SAME:
        *path, name = target.split(".")
        found["$defs"][_section(path).__name__]["properties"].pop(name)
    task = found["$defs"]["TaskEntry"]
    found["$defs"]["TaskEntry"] = {"anyOf": [{"type": "string"}, task]}  # a name alone is an entry as well
    comment = f"made by pydantic {version('pydantic')}"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$comment": comment, **found}


def sections(root: type[Section]) -> Iterator[type[Section]]:
    """Yield a section and those below it."""
    yield root
    for field in root.model_fields.values():
        below = subsection(field.annotation)
        if below is not None:
            yield from sections(below)


def _section(path: list[str]) -> type[Section]:
    """The class of the section at a path."""
    section: type[Section] = RunConfig
    for name in path:
        section = subsection(section.model_fields[name].annotation) or section
    return section
