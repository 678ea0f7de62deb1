"""Pairs of LibreOffice Writer."""

from __future__ import annotations

from typing import Any

from tests.dart_gym.solved.solved_pairs import DESKTOP, HUB, SolvedPair, cloud_file, opened, saved, typed, vm_file


def document(name: str, start: str, expected: str, solution: list, func: str, **more: Any) -> SolvedPair:
    """A document that is opened, worked on, and saved by the evaluator."""
    path, url, gold = (
        f"{DESKTOP}/{name}.docx",
        f"{HUB}libreoffice_writer/{name}.docx",
        f"{HUB}libreoffice_writer/{name}_Gold.docx",
    )
    evaluator = {
        "postconfig": saved(f"{name}.docx - LibreOffice Writer"),
        "func": func,
        "result": vm_file(path),
        "expected": cloud_file(gold),
        **({"options": more.pop("options")} if "options" in more else {}),
    }
    files = {url: f"writer_files:{start}", gold: f"writer_files:{expected}"}
    return SolvedPair(f"writer/{name}", evaluator, solution, opened(path, url), files, **more)


PAIRS = [
    document("compare-docx-files", "plain", "typed_at_start", [typed("Written by hand. ")], "compare_docx_files",
             quick=True),
]  # fmt: skip
