"""Run the table, or a part of it, and write the page.

    python -m scripts.failures                          # half an hour; writes docs/reference/failures.md
    python -m scripts.failures --only "tasks check"     # cells whose name holds this; the others stay as they were

What was run is kept in build/failures.json, so that a part can be run again. Exit status 1 where a rule is broken.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scripts.failures.cells import End, every_cell, run
from scripts.failures.page import page
from scripts.failures.rules import broken
from scripts.failures.world import World

ROOT = Path(__file__).parents[2]
PAGE, KEPT = ROOT / "docs" / "reference" / "failures.md", ROOT / "build" / "failures.json"


def main() -> int:
    """Run cells, say which rules they break, and write the page; what was never run is marked there."""
    options = _options()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs, and their children, ignore it
    chosen = [cell for cell in every_cell() if options.only in str(cell)]
    ends = _kept() if options.only else {}
    faults = 0
    with tempfile.TemporaryDirectory(prefix="failures-") as folder, ThreadPoolExecutor(options.j) as pool:
        world = World(Path(folder) / "world")
        world.need(*(part for cell in chosen for part in cell.row.needs))
        for cell, end in zip(chosen, pool.map(lambda one: run(one, world), chosen), strict=True):
            ends[str(cell)] = end
            _keep(ends)
            found = broken(cell, end)
            faults += len(found)
            if options.only or found:
                print(f"{cell}: {end.status} in {end.seconds:.1f} s: {end.last}", flush=True)
            for fault in found:
                print(f"    FAULT: {fault}", flush=True)
    PAGE.write_text(page(ends), encoding="utf-8")
    missing = [str(cell) for cell in every_cell() if str(cell) not in ends]
    print(
        f"{PAGE}: {faults} faults" + (f"; {len(missing)} cells were never run, such as {missing[0]}" if missing else "")
    )
    return int(faults > 0 or bool(missing))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default="", help="cells whose name holds this")
    parser.add_argument("-j", type=int, default=3, help="cells at the same time")
    return parser.parse_args()


def _keep(ends: dict[str, End]) -> None:
    KEPT.parent.mkdir(exist_ok=True)
    KEPT.write_text(json.dumps({name: dataclasses.asdict(end) for name, end in ends.items()}, indent=1))


def _kept() -> dict[str, End]:
    if not KEPT.is_file():
        return {}
    return {name: End(**{**end, "made": tuple(end["made"])}) for name, end in json.loads(KEPT.read_text()).items()}


if __name__ == "__main__":
    sys.exit(main())
