"""Fixtures for all tests: a quiet environment, and proof that nothing is left behind."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from hypothesis import settings  # noqa: E402  the environment comes first

settings.register_profile("dart", deadline=None)  # a busy machine is no failure
settings.load_profile("dart")
