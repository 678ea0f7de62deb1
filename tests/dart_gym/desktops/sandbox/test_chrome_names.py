"""Chromium's texts under the name of Google Chrome."""

from __future__ import annotations

import struct

from dart_gym.desktops.sandbox.chrome_names import with_chromes_name

TEXTS = {
    3: "Chromium",
    7: "$1 - Chromium",
    8: "Cancel",
    9: "About &Chromium",
    12: "Restart Chromium – or Chromium's tabs",
    15: "",
    400: "The Chromium Authors",
    401: "Chromium",
}
ALIASES = [(50, 2), (51, 4)]


def pack(texts: dict[int, str], version: int = 5) -> bytes:
    """A file of texts as Chromium's are laid out."""
    data = [text.encode() for text in texts.values()]
    start = 12 + 6 * (len(data) + 1) + 4 * len(ALIASES)
    places = [start + sum(map(len, data[:index])) for index in range(len(data) + 1)]
    table = b"".join(struct.pack("<HI", *entry) for entry in zip([*texts, 0], places, strict=True))
    aliases = b"".join(struct.pack("<HH", *alias) for alias in ALIASES)
    return struct.pack("<IB3xHH", version, 1, len(data), len(ALIASES)) + table + aliases + b"".join(data)


def test_windows_and_programs_have_the_whole_name_and_all_else_stays_where_it_is():
    renamed = {
        **TEXTS,
        3: "Google Chrome",
        7: "$1 - Google Chrome",
        9: "About &Google Chrome",
        12: "Restart Chrome – or Chrome's tabs",
        401: "Google Chrome",
    }
    assert with_chromes_name(pack(TEXTS)) == pack(renamed)
    assert with_chromes_name(pack(renamed)) == pack(renamed)


def test_a_file_in_another_layout_is_left_alone():
    assert with_chromes_name(pack(TEXTS, version=6)) == pack(TEXTS, version=6)
