"""Documents for the pairs of several applications; run by the evaluator's Python."""

from docx import Document


def _document(path, *paragraphs):
    document = Document()
    for text in paragraphs:
        document.add_paragraph(text)
    document.save(path)


def results(path):
    _document(path, "one", "", "two")


def case_study(path):
    _document(path, "Intro", "References", "Tolkien, J. (1954). The Ring.")
