"""`scripts/acting_lessons.py`: what an instruction names is what is done, by every kind of action."""

import random
import re
from pathlib import Path
from types import ModuleType

import pytest

from dart_agent.formats import get_format
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.prompting.conversation import Conversation
from tests.helpers.lesson_models import fresh_copier
from tests.helpers.scripts import load_script

SCREEN = (288, 224)


@pytest.fixture(scope="module")
def lessons() -> ModuleType:
    return load_script("acting_lessons")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fresh_copier(tmp_path_factory.mktemp("acting") / "fresh")


def test_what_is_done_stands_in_the_instruction_and_can_be_read(lessons: ModuleType, model_dir: Path) -> None:
    tokens, ui_tars = ModelTokens.load(model_dir), get_format("ui_tars")
    conversation = Conversation(tokens, VisionSpec.from_dir(model_dir), lessons.AGENT, ui_tars)
    kinds, counted = set(), 0
    for seed in range(200):
        for prompt, response in lessons.lesson(random.Random(seed), ["Enter", "the"], conversation, tokens):
            text, asked = tokens.decode(response).removesuffix("<|im_end|>"), tokens.decode(prompt)
            assert not ui_tars.parse(text, SCREEN).errors
            kinds.add(text.partition("(")[0].removeprefix("Action: "))
            numbers = re.findall(r"\b([123])(?:st|nd|rd)\b", asked)  # some are of texts that are to be typed
            places = [f"({int(one) * 72 - 36},{row * 36})" for row in range(1, 1 + len(numbers)) for one in numbers]
            for named in re.findall(r"'([^']+)'|=([\d.]+)\)", text):
                assert (named[0] or named[1]) in places or (named[0] or named[1]) in asked
            counted += any(f"'{place}'" in text for place in places)
    pointing = {"click", "left_double", "right_single", "hover", "scroll", "drag"}
    assert counted > 50
    assert kinds == {*pointing, "type", "hotkey", "wait", "finished"}


@pytest.mark.slow
@pytest.mark.train
@pytest.mark.timeout(600)
def test_some_steps_teach_the_words_that_all_responses_have(
    lessons: ModuleType, model_dir: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    lessons.teach_acting_by_words(model_dir, tmp_path / "taught", 20, ["Enter", "the"], say=said.append)
    assert (tmp_path / "taught" / "model.safetensors").exists()
    assert float(re.findall(r"([\d.]+)% of tokens", said[-1])[0]) >= 5
