"""`scripts/reading_lessons.py`: what is told of a screen is what is drawn there, and a few steps teach something."""

import random
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.tiny_model import config_from_values
from dart_gym.desktops.fake_desktop import Button, FakeDesktop
from dart_train.config.run_config import load_config
from dart_train.processes.prepare import place_model
from dart_train.trainer.weights.model_loading import load_model
from tests.helpers.scripts import load_script

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def lessons() -> ModuleType:
    return load_script("reading_lessons")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("lessons") / "fresh"
    settings = load_config(ROOT / "configs" / "tiny_reader.yaml").model.tiny
    assert config_from_values(settings).family == "qwen3_vl"
    place_model("tiny", settings, target, seed=0)
    return target


def test_a_word_is_told_to_the_tokens_that_it_is_drawn_on(lessons: ModuleType) -> None:
    side = 28.0
    wide = Button("[x] Cheese", 2, 58, 164, 24, (255, 255, 255))  # written from pixel 59 to 109, the word from 75 on
    assert lessons.tokens_of("Cheese", wide, side, 6) == [2 * 6 + 2, 2 * 6 + 3]
    assert lessons.tokens_of("1", Button("1", 2, 2, 38, 24, (255, 255, 255)), side, 6) == [0]


def test_every_screen_is_full_of_words_and_every_word_is_one_token(lessons: ModuleType, model_dir: Path) -> None:
    tokens = ModelTokens.load(model_dir)
    assert {len(tokens.encode(text)) for text in lessons.WORDS.values()} == {1}
    one = lessons.lesson(random.Random(0), FakeDesktop(lessons.SPEC))
    assert len(one.words) >= lessons.ROWS
    for word, button in one.words:
        assert button.label.endswith(word)
        drawn = one.image[button.y : button.y + button.height, button.x : button.x + button.width]
        assert drawn.min() < 100, word


@pytest.mark.thorough
def test_a_few_steps_lower_the_loss_and_deeper_features_begin_silent(
    lessons: ModuleType, model_dir: Path, tmp_path: Path
) -> None:
    lessons.teach_reading(model_dir, tmp_path / "reader", 12, say=print)
    vision, tokens = VisionSpec.from_dir(model_dir), ModelTokens.load(model_dir)
    rng, desktop = random.Random(1), FakeDesktop(lessons.SPEC)
    screens = [lessons.lesson(rng, desktop) for _ in range(4)]
    losses = []
    for path in (model_dir, tmp_path / "reader"):
        torch.manual_seed(0)
        reader = lessons.Reader(load_model(path), vision, tokens)
        with torch.no_grad():
            losses.append(
                float(
                    torch.nn.functional.cross_entropy(
                        reader.logits(reader.features(screens)).flatten(0, 1), reader.labels(screens).words.flatten()
                    )
                )
            )
    assert losses[1] < losses[0] - 0.5
    deeper = load_model(tmp_path / "reader").model.visual.deepstack_merger_list[0].linear_fc2.weight
    assert not deeper.any()


def test_what_is_to_be_found_is_clicked_in_its_middle(lessons: ModuleType, model_dir: Path) -> None:
    agent = load_config(ROOT / "configs" / "tiny_reader.yaml").agent
    samples, images = lessons.pointing_samples(model_dir, agent, 2, questions=2)
    tokens = ModelTokens.load(model_dir)
    assert len(samples) == 4
    assert {name for sample in samples for name in sample.image_hashes} == set(images)
    for sample in samples:
        assert np.shape(images[sample.image_hashes[0]]) == (224, 168, 3)
        assert tokens.decode(sample.response_ids).startswith("Action: click(start_box='(")
