"""DART's choice of high-entropy steps, by hand: the top 80 % of a group's, or of the whole batch's."""

from __future__ import annotations

import torch

from dart_train.trainer import losses

ENTROPIES = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 1.1, 1.2, 1.3, 1.4, 1.5])
GROUPS = torch.tensor([0] * 5 + [1] * 5)


def test_the_top_eighty_per_cent_of_each_group_are_kept():
    # linear 20 % quantiles: 0.1 + 0.8 * 0.1 = 0.18 and 1.18; one step of each group lies below
    kept = losses.high_entropy_steps(ENTROPIES, GROUPS, 0.8)
    assert kept.tolist() == [False, True, True, True, True] * 2


def test_over_the_batch_the_group_with_less_entropy_loses_more():
    # linear 20 % quantile of all ten: between the 2nd and 3rd, 0.2 + 0.8 * 0.1 = 0.28
    kept = losses.high_entropy_steps(ENTROPIES, torch.zeros_like(GROUPS), 0.8)
    assert kept.tolist() == [False, False, *[True] * 8]


def test_the_mean_is_over_the_tokens_of_the_response_only():
    entropies = torch.tensor([[1.0, 1.0, 9.0, 9.0], [2.0, 2.0, 2.0, 2.0]])
    mask = torch.tensor([[True, True, False, False], [True, True, True, True]])
    assert losses.masked_mean(entropies, mask, -1).tolist() == [1.0, 2.0]
