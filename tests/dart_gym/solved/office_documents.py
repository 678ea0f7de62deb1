"""What pairs of LibreOffice have in common: a document that is opened, worked on, and saved by the evaluator."""

from __future__ import annotations

from typing import Any

from tests.dart_gym.solved.solved_pairs import DESKTOP, HUB, SolvedPair, cloud_file, opened, press, saved, step, typed
from tests.dart_gym.solved.solved_pairs import vm_file as vm_file_of

APPLICATIONS = {"docx": "Writer", "odt": "Writer", "xlsx": "Calc", "pptx": "Impress"}


def command(name: str) -> list[dict[str, Any]]:
    """A command of LibreOffice, by Help > Search Commands."""
    return [*press("shift+escape"), typed(name), *press("enter")]


def chosen(path: str, dialog: str) -> list[dict[str, Any]]:
    """A file's path, typed into a dialog for files, whose title is given."""
    return [typed(path, window=dialog, timeout=30), *press("enter")]


def document(
    name: str,
    func: str,
    start: str,
    gold: str | list[str],
    solution: list[dict[str, Any]],
    *,
    kind: str = "docx",
    rules: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    files: dict[str, bytes | str] | None = None,
    result: dict[str, Any] | None = None,
    **more: Any,
) -> SolvedPair:
    """A pair about one document on the desktop's surface.

    Args:
        name: of pair and file.
        func: the evaluator's function.
        start: the maker of the document, in the application's module of `files`.
        gold: makers of the expected files; "" where the function takes none.
        solution: as in `SolvedPair`.
        kind: the ending of the document.
        rules: what the function takes instead of an expected file.
        options: of the function.
        files: further files that are put beside the document.
        result: the getter of the result, instead of the document's file.
        more: other fields of the pair.
    """
    application = APPLICATIONS[kind]
    maker, folder = f"{application.lower()}_files", f"{HUB}libreoffice_{application.lower()}/"
    path, url = f"{DESKTOP}/{name}.{kind}", f"{folder}{name}.{kind}"
    golds = [gold] if isinstance(gold, str) else gold
    urls = [f"{folder}{name}_Gold_{number}.{one.partition('.')[2] or kind}" for number, one in enumerate(golds)]
    evaluator: dict[str, Any] = {
        "postconfig": saved(f"{name}.{kind} - LibreOffice {application}"),
        "func": func,
        "result": result or vm_file_of(path),
    }
    if rules is not None:
        evaluator["expected"] = {"type": "rule", "rules": rules}
    elif len(golds) > 1:
        evaluator["expected"] = {
            "type": "cloud_file", "path": urls, "dest": [url.rpartition("/")[2] for url in urls], "multi": True,
            "gives": list(range(len(golds))),
        }  # fmt: skip
    elif gold:
        evaluator["expected"] = cloud_file(urls[0])
    if options is not None:
        evaluator["options"] = options
    made = {one: f"{maker}:{name.partition('.')[0]}" for one, name in zip(urls, golds, strict=True) if name}
    beside = [{"url": address, "path": f"{DESKTOP}/{address.rpartition('/')[2]}"} for address in files or {}]
    config = [step("download", files=beside)] if beside else []
    everything: dict[str, bytes | str] = {url: f"{maker}:{start}", **made, **(files or {})}
    pair = f"{application.lower()}/{name}"
    return SolvedPair(pair, evaluator, solution, [*config, *opened(path, url)], everything, **more)
