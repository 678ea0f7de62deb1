"""Checks that end in every way a check can end, for the process that runs them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from dart_train.gpu_check.check_setting import CheckSetting
from dart_train.gpu_check.outcome import Outcome, Status


def passes(setting: CheckSetting) -> list[Outcome]:
    return [Outcome("passes", Status.OK, f"{setting.devices} devices", values={"seconds": 1.5})]


def raises(setting: CheckSetting) -> list[Outcome]:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def aborts(setting: CheckSetting) -> list[Outcome]:
    os.abort()


def hangs(setting: CheckSetting) -> list[Outcome]:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (Path(setting.scratch) / "child").write_text(str(child.pid))
    threading.Event().wait()
    return []
