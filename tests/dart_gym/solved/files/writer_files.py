"""Documents for the pairs of Writer; run by the evaluator's Python."""

from docx import Document

PARAGRAPHS = ["The first paragraph is here.", "The second one says more.", "The last paragraph ends it."]


def plain(path):
    document = Document()
    for text in PARAGRAPHS:
        document.add_paragraph(text)
    document.save(path)


def typed_at_start(path):
    document = Document()
    for text in ["Written by hand. " + PARAGRAPHS[0], *PARAGRAPHS[1:]]:
        document.add_paragraph(text)
    document.save(path)
