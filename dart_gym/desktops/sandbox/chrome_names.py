"""Chromium's texts with the name of Google Chrome where that has its own: window titles, menus, settings.

OSWorld's tasks and getters look for windows and applications of that name, and agents have learned from its pictures.
The texts of a language are a file of Chromium's (`locales/en-US.pak`); this makes another one of it. Pure.

Layout of such a file (version 5), little-endian: version, encoding, numbers of texts and of aliases; for each text and
for the end its id and its place; aliases, which say by index which text they are; the texts one after the other.
"""

import re
import struct

import numpy as np

LANGUAGE = "en-US.pak"
_LAYOUT = (5, 1)  # version 5, UTF-8
_HEAD = struct.Struct("<IB3xHH")
_ENTRY = np.dtype([("id", "<u2"), ("place", "<u4")])
_NAME = re.compile(rb"Chromium")
_WHOLE_NAME = re.compile(rb"(^|About &?| - )Chromium$")
_SHORT_NAME = re.compile(rb"\bChromium(?! Authors| OS| open source| project)\b")


def with_chromes_name(pack: bytes) -> bytes:
    """The same texts with "Google Chrome" where a window or program is named, and "Chrome" elsewhere.

    Args:
        pack: content of a file of texts; one in another layout is returned as it is.
    """
    *layout, texts, _ = _HEAD.unpack_from(pack)
    if tuple(layout) != _LAYOUT:
        return pack
    entries = np.frombuffer(pack, _ENTRY, texts + 1, _HEAD.size).copy()
    places = entries["place"].astype(np.int64)
    found = np.array([match.start() for match in _NAME.finditer(pack, int(places[0]))], np.int64)
    parts = []
    grown = np.zeros(texts + 1, np.int64)
    end = int(places[0])
    for index in np.unique(np.searchsorted(places, found, "right") - 1):  # of ten thousand texts a few hundred
        text = pack[places[index] : places[index + 1]]
        renamed = _SHORT_NAME.sub(b"Chrome", _WHOLE_NAME.sub(rb"\1Google Chrome", text))
        parts += [pack[end : places[index]], renamed]
        grown[index + 1] = len(renamed) - len(text)
        end = int(places[index + 1])
    entries["place"] = places + np.cumsum(grown)
    aliases = pack[_HEAD.size + entries.nbytes : places[0]]
    return pack[: _HEAD.size] + entries.tobytes() + aliases + b"".join(parts) + pack[end:]
