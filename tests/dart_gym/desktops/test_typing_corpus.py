"""Two hundred texts of many scripts, typed into an editor by the keyboard, saved, and read back: all equal."""

from __future__ import annotations

import random

import pytest

from dart_gym.core.actions import Press, Type
from dart_gym.desktops.base.desktop import SettlePolicy

pytestmark = [pytest.mark.desktop, pytest.mark.timeout(240)]

ALPHABETS = {
    "ASCII": "".join(map(chr, range(32, 127))),
    "Latin": "ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑÒÓÔÕÖØÙÚÛÜÝÞßàáâãäåæçèéêëìíîïðñòóôõöøùúûüýþÿĀāĂăĄąĆćŁłŃńŐőŒœŘřŠšŮůŽžſȘșẞ",
    "Greek and Cyrillic": "ΑΒΓΔΕΖΗΘαβγδεζηθικλμνξοπρστυφχψωάέήίόύώ АБВГДЕЖЗИЙабвгдежзийклмнопрстуфхцчшщъыьэюяёїґ",
    "Chinese": "的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出而要于就下得可你年生，。「」",
    "Japanese": "あいうえおかきくけこさしすせそたちつてとアイウエオカキクケコガギグ漢字仮名交じり文。「」、ー",
    "Korean": "가나다라마바사아자차카타파하한국어입력시험글자",
    "right to left": "שלום עולם אבגדהוזחטיכלמנסעפצקרשת مرحبا بالعالم ابتثجحخدذرزسشصضطظعغفقكلمنهوي٠١٢٣٤",
    "Indic and Thai": "अआइईउऊएऐओऔकखगघचछजझटठडढणतथदधनपफबभमยรลวศษสหอฮกขคงจฉ",
    "emoji": "😀😂🎉👍🏽🚀❤️🇩🇪👩‍💻🧪🔥✅🪄",
    "signs": "€£¥©®™§¶†‡•…–—‘’“”«»¡¿½¼×÷±≤≥≠≈∞∑∏√∫→←↑↓⇒☃★♥♪①②│─┌┐",
    "combining": "e\u0301a\u0300o\u0308n\u0303u\u030a",
    "white space": " \t\n",
}
CHOSEN = [
    *(
        "<",
        "<<>><",
        "a<b && c>d",
        "x",
        " ",
        "\t",
        "\n",
        "\n\n\n",
        "\ta\n\tb\n",
        "  two  spaces  ",
        "line one\nline two\n",
    ),
    *(
        "中文",
        "é",
        "e\u0301",
        "naïve café",
        "🎉",
        "👩‍👩‍👧‍👦",
        "שלום",
        "مرحبا",
        "mixed שלום text",
        "\u200bzero width",
        "\u00a0",
    ),
    *("C:\\path\\file", "~/.bashrc", "#!/bin/sh\nexit 0\n", '{"key": [1, 2.5, null]}', "'single' \"double\" `back`"),
    *("AaAaAa", "aAaAaA", "111111", "~~~~", "^^^^", "``´´", "¨¨", "ßẞ", "ﬁ", "\u2028", "\ufeff", "𝕏𝔘", "𠀀𠮷"),
]


SIZE = 200


def corpus() -> list[str]:
    """The chosen texts, then random ones: of one script, and of all mixed."""
    rng = random.Random(0)
    texts = list(CHOSEN)
    alphabets = [*ALPHABETS.values(), *["".join(ALPHABETS.values())] * 3]
    for number in range(SIZE - len(texts)):
        alphabet = alphabets[number % len(alphabets)]
        texts.append("".join(rng.choice(alphabet) for _ in range(rng.randint(1, 40))))
    return texts


@pytest.mark.thorough
async def test_an_editor_gets_every_text_of_the_corpus(start_desktop, until):
    desktop = await start_desktop(width=1280, height=800)
    await desktop.write_file("text.txt", b"start")
    await desktop.launch(["mousepad", "text.txt"])

    async def opened():
        return b"text.txt" in (await desktop.execute(["xdotool", "getactivewindow", "getwindowname"])).stdout

    await until(opened, timeout=30)
    await desktop.settle(SettlePolicy(quiet_ms=300, max_ms=5000))
    wrong = []
    for text in corpus():
        for action in (Press(("ctrl", "a")), Press(("delete",)), Type(text), Press(("ctrl", "s"))):
            await desktop.perform(action)

        async def saved(text=text):
            return (await desktop.read_file("text.txt")).decode() == text

        try:
            await until(saved, timeout=5)
        except AssertionError:
            wrong.append((text, (await desktop.read_file("text.txt")).decode()))
    assert wrong == []
    assert len(corpus()) == SIZE
