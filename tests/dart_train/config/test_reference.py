"""docs/reference/configuration.md and configs/schema.json are what the classes say; the shipped files are valid."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from dart_gym.core.section import subsection
from dart_train.config.run_config import RunConfig
from tests.helpers.scripts import load_script

ROOT = Path(__file__).parents[3]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
reference = load_script("configuration_reference")


def schema() -> dict:
    return json.loads(reference.SCHEMA.read_text())


def keys(found: dict) -> dict[str, set[str]]:
    """The keys of each section."""
    sections = {"": found, **found["$defs"]}
    return {name: set(section.get("properties", ())) for name, section in sections.items()}


def test_page_and_schema_are_up_to_date():
    written, made = schema(), json.loads(reference.schema())
    if written["$comment"] != made["$comment"]:  # another pydantic says the same in another way
        assert keys(written) == keys(made), "run python scripts/configuration_reference.py"
        return
    assert written == made, "run python scripts/configuration_reference.py"
    assert reference.PAGE.read_text() == reference.page(), "run python scripts/configuration_reference.py"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_files_are_valid(path: Path):
    assert path.read_text().splitlines()[0] == "# yaml-language-server: $schema=schema.json"
    jsonschema.validate(yaml.safe_load(path.read_text()), schema())


@pytest.mark.parametrize(
    "wrong",
    [
        {"rolout": {}},
        {"rollout": {"tasks": ["a"], "slots": 2}},
        {"trainer": {"tis_mode": "icepop"}},
        {"trainer": {"epsilon": 2}},
        {"data": {"retention": {"max_age_days": -1}}},
    ],
)
def test_an_editor_finds_mistakes(wrong: dict):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"name": "x", "rollout": {"tasks": ["fake/two-steps"]}, **wrong}, schema())


def test_every_key_says_what_it_means_in_a_sentence():
    found, sections = [], [RunConfig]
    for section in sections:
        for name, field in section.model_fields.items():
            below = subsection(field.annotation)
            sections += [below] if below is not None else []
            if below is None or name == "tasks":
                text = field.description or " "
                whole = text.endswith((".", ")")) and not text[0].islower()
                found += [] if whole else [f"{section.__name__}.{name}: {text}"]
    assert not found
