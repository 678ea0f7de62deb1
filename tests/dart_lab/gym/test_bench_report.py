"""What benchmarks print and write."""

from __future__ import annotations

import io
import json

from rich.console import Console

from dart_lab.reporting.report import Aim, Report, median, percentile, rounded


def test_a_report_is_printed_and_written(tmp_path):
    report = Report(
        "desktop", {"step_ms_p50": 12.34567, "other": 3}, {"step_ms_p50": Aim(60, at_most=True)}, ["a note"]
    )
    report.write(tmp_path / "x.json")
    written = json.loads((tmp_path / "x.json").read_text())
    assert written["bench"] == "desktop" and written["keys"] == {"step_ms_p50": 12.35, "other": 3}
    assert written["machine"]["cores"] >= 1 and list(tmp_path.iterdir()) == [tmp_path / "x.json"]
    console = Console(file=io.StringIO(), width=200)
    report.print(console)
    printed = console.file.getvalue()
    assert all(text in printed for text in ("step_ms_p50", "12.35", "at most 60", "a note", "cores"))


def test_aims():
    assert Aim(60, at_most=True).met(59) and not Aim(60, at_most=True).met(61)
    assert Aim(5, at_most=False).met(6) and not Aim(5, at_most=False).met(4)


def test_numbers():
    assert median([3, 1, 2]) == 2 and percentile([1, 2, 3, 4], 0.95) == 4 and percentile([1], 0.5) == 1
    assert rounded(1234.5678) == 1235 and rounded(0.00123456) == 0.001235
