"""An imported suite of thousands of bundles: how long an import takes, a list, and drawing tasks from it.

The bundles are made up here in CUA-Gym's layout: a card, a table of labels, one archive; a third of the published ones'
size each. Everything goes through what users call; the commands are processes of their own.
"""

from __future__ import annotations

import io
import json
import os
import random
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from dart_gym.envs.env_settings import TaskChoice
from dart_gym.tasks.catalog import task_index
from dart_gym.tasks.catalog.registry import get_task, task_ids
from dart_gym.utils.plugins import child_environment
from dart_lab.reporting.report import Aim, Report, percentile

DRAWS = 1000
AIMS = {"import_s": Aim(60, True), "list_s": Aim(1, True), "list_command_s": Aim(1, True)}
_COMMAND = (sys.executable, "-m", "dart_gym.commands.gym_cli", "tasks")


def measure(bundles: int, report_progress: Callable[[str], None]) -> Report:
    """Run the benchmark; takes about a minute for 10,000 bundles."""
    keys: dict[str, float] = {"bundles": bundles}
    with tempfile.TemporaryDirectory(prefix="dart-bench-") as directory, _suites_in(Path(directory, "suites")):
        report_progress(f"writing {bundles} bundles")
        source = write_source(Path(directory, "source"), bundles)
        keys["source_mb"] = sum(path.stat().st_size for path in source.rglob("*") if path.is_file()) / 1e6
        report_progress("importing them")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        keys["import_s"] = _seconds(_run, "import", str(source), "--name", "bench", "--held-out", "0.1")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        keys["import_cpu_s"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        keys["import_mb"] = after.ru_maxrss / 1e3  # of the largest child so far, which it is
        keys["index_mb"] = task_index.TaskIndex("bench").path.stat().st_size / 1e6
        report_progress("listing, drawing")
        keys["list_command_s"] = min(_seconds(_run, "list", "bench") for _ in range(5))
        keys["start_command_s"] = min(_seconds(_run, "--help") for _ in range(5))  # of which it is
        keys["list_s"] = min(_seconds(task_ids, "bench") for _ in range(5))
        keys["list_part_s"] = min(_seconds(task_ids, "bench[split=test,app=vlc]") for _ in range(5))
        tracemalloc.start()
        started = time.perf_counter()
        choice = TaskChoice.make(None, None, "bench[split=train]", None, None)
        keys["environment_s"] = time.perf_counter() - started
        keys["environment_mb"] = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
        rng = np.random.default_rng(0)
        draws = [_seconds(lambda: get_task(choice.draw(rng))) for _ in range(DRAWS)]
        keys |= {"draw_p50_ms": 1e3 * percentile(draws, 0.5), "draw_p95_ms": 1e3 * percentile(draws, 0.95)}
    note = f"list_s, draw_* and environment_* in this process, the others commands; {DRAWS} draws, each reads its task"
    return Report("sources", keys, AIMS if bundles == 10_000 else {}, [note])


def write_source(root: Path, bundles: int) -> Path:
    """Make a data set of `bundles` different bundles in CUA-Gym's layout."""
    import pyarrow
    import pyarrow.parquet

    (root / "data").mkdir(parents=True)
    (root / "artifacts").mkdir()
    (root / "README.md").write_text("---\nlicense: cc0-1.0\n---\n")
    rng, rows = random.Random(0), []
    with (
        pyarrow.output_stream(str(root / "artifacts" / "tasks.tar.zst"), compression="zstd") as stream,
        tarfile.open(fileobj=stream, mode="w|") as archive,
    ):
        for number in range(bundles):
            name, app = (
                f"{number:06d}-{rng.getrandbits(48):012x}",
                rng.choice(("vlc", "gimp", "os", "libreoffice_calc")),
            )
            for path, text in _bundle(name, app, rng):
                item = tarfile.TarInfo(f"{name}/{path}")
                item.size = len(text)
                archive.addfile(item, io.BytesIO(text))
            rows.append(
                {"id": name, "app_type": app, "platform": "desktop", "difficulty": rng.choice(("easy", "hard"))}
            )
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), root / "data" / "tasks.parquet")
    return root


def _bundle(name: str, app: str, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Some 9 kB of files."""
    target = "/home/user/initial_setup.py"
    steps = [
        {"type": "download", "parameters": {"files": [{"url": "./initial_setup.py", "path": target}]}},
        {"type": "execute", "parameters": {"command": f"python3 {target}"}},
    ]
    task = {"id": name, "instruction": f"Write {rng.random()} into a file.", "app_type": app, "config": steps}
    yield "task.json", json.dumps({**task, "evaluator": {"type": "python", "url": "./reward.py"}}).encode()
    rows = "\n".join(f"rows.append({{'id': {number}, 'value': {rng.random()}}})" for number in range(80))
    yield "initial_setup.py", f"rows = []\n{rows}\nopen('/home/user/rows', 'w').write(repr(rows))\n".encode()
    checks = "\n".join(f"score += 0.01 * (str({rng.random()}) in text)" for _ in range(80))
    yield (
        "reward.py",
        f"score, text = 0.0, open('/home/user/rows').read()\n{checks}\nprint('REWARD:', score)\n".encode(),
    )


@contextmanager
def _suites_in(directory: Path) -> Iterator[None]:
    before = os.environ.get(task_index.VARIABLE)
    os.environ[task_index.VARIABLE] = str(directory)
    sys.path.append(str(Path(__file__).parents[2] / "integrations" / "task_sources"))
    try:
        yield
    finally:
        sys.path.pop()
        os.environ.pop(task_index.VARIABLE)
        if before is not None:
            os.environ[task_index.VARIABLE] = before


def _run(*arguments: str) -> None:
    subprocess.run([*_COMMAND, *arguments], check=True, stdout=subprocess.DEVNULL, env=child_environment())


def _seconds(call: Callable[..., object], *arguments: object) -> float:
    started = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - started
