"""Runs pytest as `make test` does: what fails beside other tests is tried once more, alone.

    [REPORTS=DIRECTORY] .venv/bin/python scripts/run_tests.py PYTEST_OPTION...

A test that passes alone is flaky: it is named in a line of its own, counted in the last line, and written to
`flaky.txt` in the directory of reports, which is `build` unless it is named, as the other parts of `make test-all` do.
The exit status is pytest's: that of the second try where there was one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

REPORTS = Path(os.environ.get("REPORTS", "build"))
RESULTS, FLAKY, CACHE = REPORTS / "tests.xml", REPORTS / "flaky.txt", REPORTS / "cache"
LAST_FAILED = CACHE / "v" / "cache" / "lastfailed"
SOME_FAILED = 1  # pytest's exit status


def run(options: list[str]) -> int:
    """Run pytest with a cache of its own, which other runs of pytest leave alone."""
    return subprocess.run([sys.executable, "-m", "pytest", "-o", f"cache_dir={CACHE}", *options]).returncode


def failures() -> set[str]:
    """The tests that failed in the last run."""
    return set(json.loads(LAST_FAILED.read_text())) if LAST_FAILED.exists() else set()


def passed() -> int:
    """How many tests passed in the first run."""
    suites = ElementTree.parse(RESULTS).getroot().iter("testsuite")
    return sum(
        int(suite.attrib["tests"]) - sum(int(suite.attrib[kind]) for kind in ("failures", "errors", "skipped"))
        for suite in suites
    )


def main(options: list[str]) -> int:
    """Run once or twice; the exit status."""
    started = time.monotonic()
    REPORTS.mkdir(parents=True, exist_ok=True)
    FLAKY.unlink(missing_ok=True)
    status = run([*options, "--cache-clear", f"--junitxml={RESULTS}"])
    failed = failures()
    if status != SOME_FAILED or not failed:
        return status
    print("once more, one at a time: what failed beside others", flush=True)
    status = run([*options, "-n", "0", "--last-failed"])
    still = failed & failures()
    flaky = sorted(failed - still)
    for name in flaky:
        print(f"flaky: {name}")
    FLAKY.write_text("".join(f"{name}\n" for name in flaky))
    counts = [f"{passed() + len(flaky)} passed"] + [f"{len(still)} failed"] * bool(still) + [f"{len(flaky)} flaky"]
    print(f"{', '.join(counts)} in {time.monotonic() - started:.0f} s; the flaky ones are listed in {FLAKY}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
