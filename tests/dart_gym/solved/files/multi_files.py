"""Documents for the pairs of several applications; run by the evaluator's Python."""

from docx import Document
from pptx import Presentation


def _document(path, *paragraphs):
    document = Document()
    for text in paragraphs:
        document.add_paragraph(text)
    document.save(path)


def results(path):
    _document(path, "one", "", "two")


def case_study(path):
    _document(path, "Intro", "References", "Tolkien, J. (1954). The Ring.")


def slides(path):
    presentation = Presentation()
    for title in ("First", "Second"):
        slide = presentation.slides.add_slide(presentation.slide_layouts[5])
        slide.shapes.title.text = title
    presentation.save(path)
