"""Presentations for the pairs of Impress; run by the evaluator's Python."""

import io
import struct
import wave

from PIL import Image
from pptx import Presentation
from pptx.dml.color import RGBColor
from pptx.enum.text import PP_ALIGN
from pptx.util import Inches, Pt


def _titles(titles, blank=False, white=False):
    presentation = Presentation()
    for title in titles:
        slide = presentation.slides.add_slide(presentation.slide_layouts[6 if blank else 5])
        if not blank:
            slide.shapes.title.text = title
            paragraph = slide.shapes.title.text_frame.paragraphs[0]
            paragraph.alignment, font = PP_ALIGN.CENTER, paragraph.runs[0].font  # written out, as by Impress
            font.name, font.size, font.color.rgb = "Calibri", Pt(44), RGBColor(0, 0, 0)
            font.bold = font.italic = font.underline = False
        if white:
            slide.background.fill.solid()
            slide.background.fill.fore_color.rgb = RGBColor(255, 255, 255)
    return presentation


def two_slides(path):
    _titles(["Birds", "Trees"], white=True).save(path)


def one_slide(path):
    _titles(["Birds"]).save(path)


def blue_numbers(path):
    presentation = _titles(["Birds"])
    for placeholder in presentation.slide_master.placeholders:
        run = placeholder.text_frame.paragraphs[0].add_run()
        run.text = "-"
        run.font.color.rgb = RGBColor(0, 0, 255)
    presentation.save(path)


def more_title(path):
    _titles(["Birds of the north", "Trees"], white=True).save(path)


def picture(path):
    Image.radial_gradient("L").convert("RGB").resize((160, 120)).save(path, "PNG")


def small_picture(path):
    data = io.BytesIO()
    picture(data)
    presentation = _titles([""], blank=True)
    presentation.slides[0].shapes.add_picture(data, Inches(1), Inches(1), Inches(2), Inches(1.5))
    presentation.save(path)


def sound(path):
    with wave.open(path, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(22050)
        file.writeframes(b"".join(struct.pack("<h", number * number % 20011 - 10000) for number in range(22050)))
