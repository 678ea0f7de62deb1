"""The pipeline as a part of somebody's own program."""

from __future__ import annotations

import signal
from pathlib import Path

from dart_train.config.run_config import load_config
from dart_train.launch import pipeline


def test_the_program_has_its_signals_back_when_a_run_ends(tmp_path):
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    pipeline.execute(load_config(Path("configs/drawn.yaml")), tmp_path, plain=True, only=())
    assert [signal.getsignal(number) for number in numbers] == before
