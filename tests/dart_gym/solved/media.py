"""Stand-ins that need no library of OSWorld's: pictures, sounds, films, archives, PDFs and plain documents."""

from __future__ import annotations

import io
import math
import struct
import subprocess
import tempfile
import wave
import zipfile
from pathlib import Path

from PIL import Image, ImageDraw

RATE = 22050


def saved_as(image: Image.Image, kind: str = "PNG") -> bytes:
    """A picture as the bytes of a file."""
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def photo(width: int = 320, height: int = 200) -> Image.Image:
    """Soft colours, a ball, a box and a pattern: not alike when mirrored or turned."""
    image = Image.new("RGB", (width, height))
    image.putdata(
        [
            (60 + x * 120 // width, 80 + y * 100 // height, 110 + (x // 40 + y // 40) % 2 * 30)
            for y in range(height)
            for x in range(width)
        ]
    )
    draw = ImageDraw.Draw(image)
    draw.ellipse((width // 10, height // 5, width // 3, height * 3 // 5), fill=(190, 120, 100))
    draw.rectangle((width * 5 // 8, height // 3, width * 7 // 8, height * 9 // 10), fill=(90, 140, 100))
    return image


def checks(width: int = 192, height: int = 108) -> Image.Image:
    """A board of small black and white fields, like no background of a desktop."""
    image = Image.new("RGB", (width, height))
    image.putdata([((x // 4 + y // 4) % 2 * 255,) * 3 for y in range(height) for x in range(width)])
    return image


def packed(files: dict[str, str | bytes]) -> bytes:
    """A ZIP archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def pdf(*lines: str) -> bytes:
    """A page with lines of text."""
    text = "BT /F1 12 Tf 72 720 Td 14 TL " + " ".join(f"({line}) Tj T*" for line in lines) + " ET"
    objects = [
        "<</Type/Catalog/Pages 2 0 R>>",
        "<</Type/Pages/Kids[3 0 R]/Count 1>>",
        "<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
        f"<</Length {len(text)}>>stream\n{text}\nendstream",
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    content, places = b"%PDF-1.4\n", []
    for number, described in enumerate(objects, start=1):
        places.append(len(content))
        content += f"{number} 0 obj{described}endobj\n".encode()
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    end = f"trailer<</Size 6/Root 1 0 R>>\nstartxref\n{len(content)}\n%%EOF\n"
    return content + f"xref\n0 6\n0000000000 65535 f \n{table}{end}".encode()


def wav(*tones: int) -> bytes:
    """Half a second of each tone."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(RATE)
        for tone in tones:
            samples = (int(12000 * math.sin(2 * math.pi * tone * n / RATE)) for n in range(RATE // 2))
            sound.writeframes(b"".join(struct.pack("<h", sample) for sample in samples))
    return buffer.getvalue()


def ffmpeg(name: str, *arguments: str, given: bytes = b"") -> bytes:
    """What ffmpeg makes in a file of this name; `given` is on its standard input."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, name)
        subprocess.run(["ffmpeg", "-v", "error", *arguments, str(made)], input=given, check=True, timeout=60)
        return made.read_bytes()


def mp3(sound: bytes) -> bytes:
    """A sound as MP3."""
    return ffmpeg("sound.mp3", "-f", "wav", "-i", "-", given=sound)


def film(*, seconds: int = 2, upside_down: bool = False, size: str = "160x120") -> bytes:
    """A test picture that moves."""
    source = f"testsrc=size={size}:rate=10:duration={seconds}"
    turned = ["-vf", "vflip,hflip"] if upside_down else []
    return ffmpeg("film.mp4", "-f", "lavfi", "-i", source, *turned, "-c:v", "mpeg4", "-q:v", "3")
