"""Documents for the pairs of Writer; run by the evaluator's Python."""

import io

from docx import Document
from docx.enum.text import WD_TAB_ALIGNMENT
from docx.shared import Inches, Pt, RGBColor
from odf import style
from odf import text as odf_text
from odf.opendocument import OpenDocumentText
from PIL import Image

PARAGRAPHS = ["The first paragraph is here.", "The second one says more.", "The last paragraph ends it."]
TRAINS = ["12:00:01,A7,3,1", "12:04:30,B2,3,2", "12:09:00,A7,4,1"]
REFERENCES = ["References", "Ann Arbor. Birds of the north. 2001.", "Ben Ling. On trains. 1999."]


def _save(path, paragraphs):
    document = Document()
    for text in paragraphs:
        document.add_paragraph(text)
    document.save(path)


def plain(path):
    _save(path, PARAGRAPHS)


def one_line(path):
    _save(path, ["Report of the birds of the north"])


def typed_at_start(path):
    _save(path, ["Written by hand. " + PARAGRAPHS[0], *PARAGRAPHS[1:]])


def one_more_line(path):
    _save(path, ["One more line.", *PARAGRAPHS])


def spaced(path):
    document = Document()
    for text in PARAGRAPHS:
        document.add_paragraph(text).paragraph_format.line_spacing = 2.0
    document.save(path)


def trains(path):
    _save(path, TRAINS)


def unique_trains(path):
    _save(path, TRAINS[:2])


def no_references(path):
    _save(path, PARAGRAPHS)


def references(path):
    _save(path, [*PARAGRAPHS, *REFERENCES])


def empty(path):
    _save(path, [""])


def italic(path):
    document = Document()
    for number, text in enumerate(PARAGRAPHS):
        run = document.add_paragraph().add_run(text)
        run.italic, run.font.size = number == 1, Pt(12)
    document.save(path)


def split_by_tab(path):
    _save(path, ["The first three\twords are left.", "Here it is\tas well."])


def tab_stops(path):
    document = Document()
    for text in ["The first three\twords are left.", "Here it is\tas well."]:
        document.add_paragraph(text).paragraph_format.tab_stops.add_tab_stop(Inches(5), WD_TAB_ALIGNMENT.RIGHT)
    document.save(path)


def _table(path, cell, **colors):
    document = Document()
    table = document.add_table(2, 2)
    for number, text in enumerate(["apple", "banana", cell, "dove"]):
        run = table.cell(number // 2, number % 2).paragraphs[0].add_run(text)
        if colors:
            run.font.color.rgb = RGBColor(*colors["vowel" if text[:1] in "aeiou" else "other"])
    document.save(path)


def table_with_a_gap(path):
    _table(path, "")


def full_table(path):
    _table(path, "carrot")


def black_table(path):
    _table(path, "carrot", vowel=(0, 0, 0), other=(0, 0, 255))


def colored_table(path):
    _table(path, "carrot", vowel=(255, 0, 0), other=(0, 0, 255))


def picture(path):
    Image.radial_gradient("L").convert("RGB").resize((96, 64)).save(path, "PNG")


def with_picture(path):
    data = io.BytesIO()
    picture(data)
    document = Document()
    for text in PARAGRAPHS:
        document.add_paragraph(text)
    document.add_picture(data)
    document.save(path)


def highlighted(path):
    document = OpenDocumentText()
    yellow = style.Style(name="yellow", family="text")
    yellow.addElement(style.TextProperties(backgroundcolor="#ffff00"))
    document.automaticstyles.addElement(yellow)
    paragraph = odf_text.P(text="Here is ")
    paragraph.addElement(odf_text.Span(stylename=yellow, text="a marked word"))
    document.text.addElement(paragraph)
    document.save(path)
