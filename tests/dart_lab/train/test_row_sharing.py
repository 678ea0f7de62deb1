"""Counting the tokens of rows: by hand, and against TRL's prefix trees."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dart_agent.models.model_tokens import ModelTokens
from dart_lab.train.made_up_steps import Window, record_steps
from dart_lab.train.row_sharing import (
    FORKED_AT,
    MEMBERS,
    Tokens,
    count,
    made_up,
    measure,
    tree_tokens,
    with_window,
)
from dart_train.core.train_errors import TrainingError
from dart_train.trainer.batches.samples import Sample

pytestmark = pytest.mark.train

PAD = 9


def test_what_a_tree_shares_beyond_rows_is_counted_by_hand():
    opening, seen = (1, 2), (PAD, PAD)
    first = Sample((*opening, *seen), ("a",), (3, 4), group=0, trajectory=0)
    second = Sample((*opening, *seen, 3, 4, 5, *seen), ("a", "b"), (6, 7), trajectory=0)  # goes on
    third = Sample((*opening, *seen), ("b",), (8,), trajectory=0)  # a window dropped a screen
    other = Sample((*opening, *seen), ("a",), (3, 7), trajectory=1)  # the same first token
    samples = [first, second, third, other]
    # 5 + 10 + 4 + 5; a chain of 10, 4 and 5; the other shares its prompt of 4: 10 + 1, and 4; a tree of 10 and 2 pads.
    assert count(samples, PAD) == Tokens(24, 19, 15, 12, 15, 12)
    assert tree_tokens([second, third, other], PAD, 11) == 7 + 10  # the longest does not fit


def test_trees_count_as_trls_but_for_its_forks_one_token_early():
    """TRL's tree tells tokens apart by what follows, so that it forks a token early, and it holds last tokens."""
    from trl.experimental.async_grpo.packing import TreeRow

    chance = random.Random(0)
    for _ in range(20):
        rows = [tuple(chance.choice((1, 2)) for _ in range(chance.randint(3, 9))) for _ in range(6)]
        row = TreeRow()
        for ids in rows:
            mask = np.zeros(len(ids), np.int64)
            row.add({"input_ids": np.asarray(ids), "completion_mask": mask, "group_id": 0})
        pairs = [tuple(zip(ids, (*ids[1:], 0), strict=True)) for ids in rows]
        coded = {pair: number for number, pair in enumerate(sorted({pair for row in pairs for pair in row}), 100)}
        samples = [Sample(tuple(coded[pair] for pair in row), (), (0,)) for row in pairs]
        assert tree_tokens(samples, PAD) == len(row.tokens)


def test_made_up_groups_meet_where_they_should(model_dir):
    tokens = ModelTokens.load(model_dir)
    whole = count(made_up(tokens, Window(15)), tokens.image_pad_id)
    assert whole.tree == pytest.approx(whole.rows, abs=MEMBERS)  # one chain each, from one first prompt
    assert whole.rows < whole.merged < whole.steps
    forked = count(made_up(tokens, Window(15), forked_at=FORKED_AT), tokens.image_pad_id)
    assert forked.tree == pytest.approx(forked.rows, abs=MEMBERS)
    assert forked.rows < forked.merged / 1.5


def test_recorded_episodes_are_laid_out_with_another_window(model_dir):
    tokens = ModelTokens.load(model_dir)
    steps = record_steps(tokens, "Click", ["a", "b", "c"], [4, 6, 8], [[3, 4], [5, 6], [7, 8]], Window(1))
    assert with_window(steps, "Click", tokens, Window(1)) == steps
    (*_, last) = with_window(steps, "Click", tokens, Window(2))
    assert last.image_hashes == ("b", "c") and last.prompt_ids.count(tokens.image_pad_id) == 14


def test_nothing_recorded_is_said(model_dir):
    with pytest.raises(TrainingError, match="no recorded steps"):
        measure([], ModelTokens.load(model_dir))
