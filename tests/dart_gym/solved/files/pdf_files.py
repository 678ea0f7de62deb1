"""Expected PDF files; run by the evaluator's Python."""

import io

import fitz
from PIL import Image, ImageDraw


def one_line(path):
    document = fitz.open()
    document.new_page().insert_text((72, 72), "Report of the birds of the north")
    document.save(path)


def receipt(path):
    image = Image.new("RGB", (320, 240), "white")
    draw = ImageDraw.Draw(image)
    for number, color in enumerate(["red", "black", "blue", "green"]):
        draw.rectangle((20, 20 + 50 * number, 60 + 70 * number, 50 + 50 * number), fill=color)
    image.save(path, "PNG")


def receipt_page(path):
    data = io.BytesIO()
    receipt(data)
    document = fitz.open()
    document.new_page().insert_image(fitz.Rect(72, 72, 392, 312), stream=data.getvalue())
    document.save(path)
