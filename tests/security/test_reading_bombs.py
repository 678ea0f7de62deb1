"""Documents that take for ever to read end in a score of 0 on a machine that others keep busy, too: never in none."""

from __future__ import annotations

import io
import os
import subprocess
import zipfile

import pytest

from dart_gym.core.outcomes import EvaluationStatus, TerminalState
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.factory import make_desktop
from dart_gym.desktops.keeper.held_up import OVERLOAD
from dart_gym.tasks.evaluation import evaluator_environment
from dart_gym.tasks.evaluation.evaluator import evaluate
from tests.helpers.busy_machine import busy_machine

pytestmark = [pytest.mark.security, pytest.mark.desktop, pytest.mark.slow]

TIMEOUT_S = 20.0
DECK = """
import sys
from pptx import Presentation
deck = Presentation()
deck.slides.add_slide(deck.slide_layouts[5]).shapes.title.text = "Birds"
deck.save(sys.argv[1])
"""


def honest_deck(path) -> bytes:
    subprocess.run([evaluator_environment.find().python, "-c", DECK, str(path)], check=True, timeout=60)
    return path.read_bytes()


def deck_of_many_lines(deck: bytes, lines: int) -> bytes:
    """A deck of a few hundred kilobytes whose title has very many lines."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(deck)) as source, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            content = source.read(name)
            if name == "ppt/slides/slide1.xml":
                start, end = content.index(b"<a:p>"), content.index(b"</a:p>") + len(b"</a:p>")
                content = content[:start] + content[start:end] * lines + content[end:]
            target.writestr(name, content)
    return made.getvalue()


def nested_pdf(levels: int, fold: int) -> bytes:
    """A document of one page that draws a form, which draws another one so often, and so on."""
    font = "/Font << /F << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >>"
    parts = ["<< /Type /Catalog /Pages 2 0 R >>", "<< /Type /Pages /Kids [3 0 R] /Count 1 >>"]
    resources = f"/Resources << {font} /XObject << /X 5 0 R >> >>"
    parts += [f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 99 99] {resources} /Contents 4 0 R >>", stream("", "/X Do")]
    form = "/Type /XObject /Subtype /Form /BBox [0 0 99 99]"
    for level in range(levels):
        inner = f"{form} /Resources << {font} /XObject << /X {6 + level} 0 R >> >>"
        parts.append(stream(inner, "/X Do " * fold))
    parts.append(stream(f"{form} /Resources << {font} >>", "BT /F 9 Tf 9 9 Td (birds) Tj ET"))
    made, places = "%PDF-1.4\n", []
    for number, part in enumerate(parts, start=1):
        places.append(len(made))
        made += f"{number} 0 obj\n{part}\nendobj\n"
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    size = f"{len(parts) + 1}"
    trailer = f"trailer\n<< /Size {size} /Root 1 0 R >>\nstartxref\n{len(made)}\n%%EOF\n"
    return f"{made}xref\n0 {size}\n0000000000 65535 f \n{table}{trailer}".encode()


def stream(entries: str, content: str) -> str:
    return f"<< {entries} /Length {len(content)} >>\nstream\n{content}\nendstream"


@pytest.fixture
async def desktop():
    machine = make_desktop(DesktopSpec(width=320, height=240))
    await machine.start()
    yield machine
    await machine.stop()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["pptx", "pdf"])
async def test_a_document_that_is_read_for_ever_is_worth_0_on_a_busy_machine(desktop, tmp_path, kind):
    if kind == "pptx":
        right = honest_deck(tmp_path / "right.pptx")
        left, func = deck_of_many_lines(right, 2_000_000), "compare_pptx_files"
    else:
        right, left, func = nested_pdf(0, 1), nested_pdf(12, 10), "compare_pdfs"
    result, expected = ({"type": "vm_file", "path": f"/home/user/{n}.{kind}", "dest": f"{n}.{kind}"} for n in "ab")
    evaluator = {"func": func, "result": result, "expected": expected}
    for name, data in (("a", right), ("b", right)):
        await desktop.write_file(f"/home/user/{name}.{kind}", data)
    honest = await evaluate(desktop, evaluator, TerminalState.DONE, official=True)
    assert honest.score == 1.0, honest
    await desktop.write_file(f"/home/user/a.{kind}", left)
    with busy_machine(int((OVERLOAD + 1) * len(os.sched_getaffinity(0)))):
        evaluation = await evaluate(desktop, evaluator, TerminalState.DONE, official=True, timeout=TIMEOUT_S)
    assert (evaluation.status, evaluation.score) == (EvaluationStatus.OK, 0.0), evaluation
    assert "took longer" in evaluation.detail
