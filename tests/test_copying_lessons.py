"""`scripts/copying_lessons.py`: what is to be typed stands in the instruction, and some steps teach something."""

import random
import re
from pathlib import Path
from types import ModuleType

import pytest

from dart_agent.formats import get_format
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.prompting.conversation import Conversation, ConversationConfig
from tests.helpers.lesson_models import fresh_copier
from tests.helpers.scripts import load_script


@pytest.fixture(scope="module")
def lessons() -> ModuleType:
    return load_script("copying_lessons")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fresh_copier(tmp_path_factory.mktemp("copying") / "fresh")


def test_what_is_typed_stands_in_the_instruction_and_one_after_the_other(lessons: ModuleType, model_dir: Path) -> None:
    tokens, vision = ModelTokens.load(model_dir), VisionSpec.from_dir(model_dir)
    agent = ConversationConfig(style="short", screenshots=1, texts=4)
    conversation = Conversation(tokens, vision, agent, get_format("ui_tars"))
    several = 0
    for seed in range(40):
        rows = lessons.lesson(random.Random(seed), ["Enter", "the"], conversation, tokens)
        several += len(rows) > 1
        for prompt, response in rows:
            typed = re.match(r"Action: type\(content='(.*)'\)", tokens.decode(response))
            assert typed is not None
            assert typed[1] in tokens.decode(prompt)
    assert several > 10


def test_only_responses_are_taught(lessons: ModuleType) -> None:
    ids, attended, wanted = lessons.padded([((5, 6), (7, 8)), ((5,), (9,))], 0)
    assert ids.tolist() == [[5, 6, 7, 8], [5, 9, 0, 0]]
    assert attended.tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert ids[:, 1:][wanted].tolist() == [7, 8, 9]


@pytest.mark.slow
@pytest.mark.train
@pytest.mark.timeout(600)
def test_some_steps_teach_the_words_that_all_responses_have(
    lessons: ModuleType, model_dir: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    lessons.teach_copying(model_dir, tmp_path / "taught", 20, ["Enter", "the"], say=said.append)
    assert (tmp_path / "taught" / "model.safetensors").exists()
    assert int(re.findall(r"(\d+)%", said[-1])[0]) >= 5
