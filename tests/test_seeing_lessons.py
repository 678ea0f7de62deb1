"""`scripts/seeing_lessons.py`: cards are where the lessons say, and some steps teach the tower and the click."""

import random
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dart_agent.formats import get_format
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.prompting.conversation import Conversation
from dart_train.trainer.weights.model_loading import load_model
from tests.helpers.lesson_models import fresh_copier
from tests.helpers.scripts import load_script

SIDE = 32


@pytest.fixture(scope="module")
def lessons() -> ModuleType:
    return load_script("seeing_lessons")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fresh_copier(tmp_path_factory.mktemp("seeing") / "fresh")


@given(seed=st.integers(0, 2**32), cards=st.integers(1, 6))
def test_cards_differ_from_what_is_around_them(seed: int, cards: int) -> None:
    screen = load_script("seeing_screens").drawn(random.Random(seed), cards)
    height, width = screen.image.shape[:2]
    assert 1 <= len(screen.cards) <= cards
    for left, top, right, bottom in screen.cards:
        assert 0 <= left < right < width
        assert 0 <= top < bottom < height
        corner, beside = screen.image[top, left].astype(int), screen.image[top, left - 1].astype(int)
        assert np.abs(corner - beside).max() >= 5


def test_tokens_are_told_the_card_that_is_on_them_and_where_its_middle_is(lessons: ModuleType) -> None:
    screen = lessons.Screen(np.zeros((64, 96, 3), np.uint8), ((32, 0, 63, 31),))
    here, places = lessons.labels(screen, SIDE)
    assert here.tolist() == [0, 1, 0, 0, 0, 0]
    assert places.tolist() == [[4, 4], [12, 4], [20, 4], [4, 12], [12, 12], [20, 12]]
    wide = lessons.Screen(np.zeros((64, 96, 3), np.uint8), ((4, 36, 91, 60),))
    here, places = lessons.labels(wide, SIDE)
    assert here.tolist() == [0, 0, 0, 1, 1, 1]
    assert {tuple(place) for place in places[3:].tolist()} == {(12, 12)}


def test_the_model_sees_the_screens_at_their_own_size_and_is_asked_for_the_card(
    lessons: ModuleType, model_dir: Path
) -> None:
    tokens, vision = ModelTokens.load(model_dir), VisionSpec.from_dir(model_dir)
    assert vision.factor == SIDE
    assert all(vision.resized(height, width) == (height, width) for width, height in lessons.SIZES)
    conversation = Conversation(tokens, vision, lessons.AGENT, get_format("ui_tars"))
    screens = [lessons.drawn(random.Random(seed), 1) for seed in range(8)]
    for screen, sample in zip(screens, lessons.samples(random.Random(0), screens, conversation, tokens), strict=True):
        assert "card" in tokens.decode(sample.prompt_ids)
        left, top, right, bottom = screen.cards[0]
        clicked = re.fullmatch(r"Action: click\(start_box='\((\d+),(\d+)\)'\).*", tokens.decode(sample.response_ids))
        assert clicked is not None
        assert left <= int(clicked[1]) <= right
        assert top <= int(clicked[2]) <= bottom


@pytest.mark.slow
@pytest.mark.train
@pytest.mark.timeout(600)
def test_some_steps_teach_the_tower_and_the_form_of_a_click(
    lessons: ModuleType, model_dir: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    lessons.teach_seeing(model_dir, tmp_path / "taught", (50, 6), ["card", "the"], say=said.append)
    assert [line.split(",")[0] for line in said] == ["tower: 50 steps", "seeing: 6 steps"]
    screens = [lessons.drawn(random.Random(seed), 3) for seed in range(16)]
    before, after = (_place_loss(lessons, directory, screens) for directory in (model_dir, tmp_path / "taught"))
    assert after < before


def _place_loss(lessons: ModuleType, model_dir: Path, screens: list[Any]) -> float:
    """Squared error of a linear guess, fitted on these screens, at whether a card is on a token."""
    model, vision = load_model(model_dir), VisionSpec.from_dir(model_dir)
    with torch.no_grad():
        features = torch.cat(lessons.image_tokens(model, vision, [screen.image for screen in screens]))
    here = torch.cat([lessons.labels(screen, SIDE)[0] for screen in screens])[:, None]
    features = torch.cat([features, torch.ones(len(features), 1)], -1)
    fitted = torch.linalg.lstsq(features, here).solution
    return float((features @ fitted - here).square().mean())
