"""Errors of the trainer that a person must act on."""

from __future__ import annotations

from dart_train.core.train_errors import DartTrainError


class TrainingError(DartTrainError):
    """Training cannot go on: the weights or gradients are not finite, or there is nothing to train on."""

    hopeless = True
