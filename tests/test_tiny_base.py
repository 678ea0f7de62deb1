"""What `scripts/make_tiny_base.py` teaches the quick start's model: to find what is named, not the tasks' own words."""

from __future__ import annotations

import random

import pytest

from dart_agent.models.tiny_model import INSTRUCTION_WORDS
from tests.helpers.scripts import load_script

pytestmark = pytest.mark.train
script = load_script("make_tiny_base")
FORM = 'Check the 3rd radio button and enter the number "-24" into the 1st textbox.'


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ("Click on Tab #2.", "Find Tab #2."),
        ('Click the button in the dialog box labeled "Cancel".', 'Find "Cancel".'),
        ("Focus into the 2nd input textbox.", "Find 2nd."),
        ("Click on the grid coordinate (-1,2).", "Find (-1,2)."),
    ],
)
def test_an_element_is_named_and_not_what_to_do_with_it(told, found):
    assert script.named(told, random.Random(0)) == [found]


def test_a_form_says_what_is_to_be_entered_and_not_what_is_the_option_and_what_the_field():
    rng = random.Random(0)
    wordings = [wording for _ in range(100) for wording in script.named(FORM, rng)]
    assert len(wordings) == 300 and len(set(wordings)) > 290
    assert all({"3rd", '"-24"', "1st"} <= set(wording.split()) for wording in wordings)
    assert {word for wording in wordings for word in wording.split()} <= {*INSTRUCTION_WORDS, "Find", '"-24"'}
    first = [wording for wording in wordings if wording.index("3rd") < wording.index("1st")]
    assert 100 < len(first) < 200


def test_an_instruction_that_names_nothing_is_an_error():
    with pytest.raises(ValueError, match="nothing is named in 'Expand the section'"):
        script.named("Expand the section", random.Random(0))


@pytest.mark.slow
@pytest.mark.desktop
@pytest.mark.parametrize("number", [2, 3])
def test_a_stage_goes_from_shipped_weights_to_others(number, tmp_path, monkeypatch):
    load = script.load_config
    few = ["demonstrations.per_task=4", "demonstrations.per_task_of={}", "warmup.max_steps=2", "rollout.workers=1"]
    monkeypatch.setattr(script, "load_config", lambda path, settings: load(path, [*settings, *few]))
    weights = script.finding_stage(number, script.ASSETS / "tiny_base", tmp_path)
    before, after = (directory / "model.safetensors" for directory in (script.ASSETS / "tiny_base", weights))
    assert before.stat().st_size == after.stat().st_size and before.read_bytes() != after.read_bytes()
