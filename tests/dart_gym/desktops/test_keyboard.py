import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_gym.core.keys import KEYS
from dart_gym.desktops.input.keyboard import Keyboard, Keystroke, keysym_of, runs

FIRST = 8
A, B, LESS, SHIFT = 0x61, 0x62, 0x3C, 0xFFE1
MAPPING = [(0, 0), (A, 0x41), (B, 0x42), (SHIFT, 0), (0x2C, LESS), (LESS, 0x3E), (0, 0), (0, 0), (0, 0), (0, 0)]
SPARE = 4 - 1  # keycode 8 is never used, 17 is a modifier


def make_keyboard() -> Keyboard:
    return Keyboard(MAPPING, FIRST, modifiers={17})


def chars(text: str) -> list[int]:
    return [keysym_of(character) for character in text]


@pytest.mark.parametrize("key", sorted(KEYS))
def test_every_named_key_has_a_keysym(key):
    assert keysym_of(key)


@pytest.mark.parametrize(
    ("character", "keysym"),
    [("a", 0x61), ("é", 0xE9), ("中", 0x1004E2D), ("🎉", 0x101F389), ("\n", 0xFF0D), ("\t", 0xFF09), ("ש", 0x10005E9)],
)
def test_characters_have_the_keysyms_of_the_standard(character, keysym):
    assert keysym_of(character) == keysym


@pytest.mark.parametrize("character", ["\0", "\x07", "\x85", "\ud800"])
def test_what_no_key_types_is_refused(character):
    with pytest.raises(ValueError, match="U\\+"):
        keysym_of(character)


def test_known_characters_need_no_remapping_and_prefer_the_first_key():
    batches = make_keyboard().plan(chars("aA<"))
    assert [batch.remap for batch in batches] == [{}]
    assert batches[0].keystrokes == [Keystroke(9), Keystroke(9, True), Keystroke(12, True)]


def test_foreign_characters_get_spare_keycodes_once():
    keyboard = make_keyboard()
    assert len(keyboard._spare) == SPARE
    batches = keyboard.plan(chars("中é中"))
    assert len(batches) == 1 and not batches[0].overwrites
    assert batches[0].remap == {14: keysym_of("中"), 15: 0xE9}
    assert not keyboard.plan(chars("é中"))[0].remap


def test_a_text_with_more_foreign_characters_than_spare_keys_is_cut():
    batches = make_keyboard().plan(chars("一二三四五"))
    assert [len(batch.keystrokes) for batch in batches] == [3, 2]
    assert [batch.overwrites for batch in batches] == [False, True]


def test_a_later_text_that_reuses_a_keycode_says_so():
    keyboard = make_keyboard()
    keyboard.plan(chars("一二三"))
    keyboard.plan(chars("一"))
    batch = keyboard.plan(chars("四"))[0]
    assert batch.overwrites and list(batch.remap) == [15]  # that of 二, the one least recently used


@given(st.lists(st.text(st.sampled_from("aA<一二三四五六é"), max_size=30), max_size=5))
def test_keystrokes_mean_the_text_at_the_time_they_are_sent(texts):
    keyboard = make_keyboard()
    meaning = {9 + i: row for i, row in enumerate(MAPPING[1:])}
    for text in texts:
        typed = []
        for batch in keyboard.plan(chars(text)):
            assert not {key.keycode for key in batch.keystrokes} - set(meaning)
            overwritten = [keycode for keycode in batch.remap if any(meaning[keycode])]
            assert batch.overwrites == bool(overwritten)
            meaning.update({keycode: (keysym, keysym) for keycode, keysym in batch.remap.items()})
            typed += [meaning[key.keycode][key.shift] for key in batch.keystrokes]
        assert typed == chars(text)


def test_adjoining_keycodes_are_changed_together():
    assert runs({5: 1, 3: 2, 4: 3, 9: 4}) == [(3, [2, 3, 1]), (9, [4])]
