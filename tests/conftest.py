"""Fixtures for all tests: a quiet environment, and proof that nothing is left behind."""

from __future__ import annotations

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background: children would inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)

from hypothesis import settings  # noqa: E402  the environment comes first

settings.register_profile("dart", deadline=None)  # a busy machine is no failure
settings.load_profile("dart")
