import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_gym.core.keys import KEYS
from dart_gym.desktops.input.key_map import KeyMap, Stroke
from dart_gym.desktops.input.keyboard import Batch, Keyboard, runs, spelled
from dart_gym.desktops.input.requested_keys import keysym_of

A, LESS, SHIFT, NUM_LOCK, KP_1 = 0x61, 0x3C, 0xFFE1, 0xFF7F, 0xFFB1
ROWS = {
    8: [],
    9: [[(0, A), (1, 0x41)]],
    10: [[(0, 0x62), (1, 0x42)]],
    11: [[(0, SHIFT)]],
    12: [[(0, 0x2C), (1, LESS), (0x80, 0x40)]],
    13: [[(0, LESS), (1, 0x3E)]],
    **{keycode: [] for keycode in (14, 15, 16, 17)},
    18: [[(0, 0xFF9C), (1, KP_1), (0x10, KP_1)]],
    19: [[(0, NUM_LOCK)]],
    20: [[(0, 0xFE03)]],
    21: [[(0, 0x6C6)], [(0, 0x78)]],
}
MODIFIERS = [(11, 0), (0, 0), (0, 0), (0, 0), (19, 0), (0, 0), (0, 0), (20, 17)]
SPARE = 4 - 1  # keycode 8 is never used, 17 is a modifier


def make_keyboard(**changes) -> Keyboard:
    return Keyboard(KeyMap({**ROWS, **changes}, MODIFIERS))


def chars(text: str) -> list[int]:
    return [keysym_of(character) for character in text]


def plan(keyboard: Keyboard, keysyms: list[int]) -> list[Batch]:
    batches = []
    while keysyms:
        batches.append(keyboard.next_batch(keysyms))
        keysyms = keysyms[len(batches[-1].strokes) :]
    return batches


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
    batches = plan(make_keyboard(), chars("aA<@"))
    assert [batch.remap for batch in batches] == [{}]
    assert batches[0].strokes == [Stroke(9), Stroke(9, 1), Stroke(12, 1), Stroke(12, 0x80)]


def test_the_number_pad_is_reached_with_num_lock_and_not_with_shift():
    assert make_keyboard().next_batch([KP_1]).strokes == [Stroke(18, 0x10)]


def test_other_groups_and_older_names_of_letters_are_keys_of_the_map():
    assert make_keyboard().next_batch(chars("фx")).strokes == [Stroke(21), Stroke(21, 0, 1)]
    assert [spelled(keysym) for keysym in (0x20AC, 0x1B3, 0x41)] == chars("€łA")


def test_foreign_characters_get_spare_keycodes_once():
    keyboard = make_keyboard()
    batches = plan(keyboard, chars("中é中"))
    assert len(batches) == 1 and not batches[0].overwrites
    assert batches[0].remap == {14: keysym_of("中"), 15: 0xE9}
    assert not keyboard.next_batch(chars("é中")).remap


def test_a_new_map_forgets_the_spare_keys_that_it_lost_and_no_others():
    keyboard = make_keyboard()
    keyboard.next_batch(chars("中é"))
    keyboard.update(KeyMap({**ROWS, 14: [[(0, keysym_of("中"))]], 9: [[(0, 0x7A)]]}, MODIFIERS))
    batch = keyboard.next_batch(chars("中éz"))
    assert list(batch.remap.values()) == [0xE9] and not batch.overwrites
    assert batch.strokes[0] == Stroke(14) and batch.strokes[2] == Stroke(9)


def test_a_map_without_free_keys_says_so():
    keyboard = Keyboard(KeyMap({9: [[(0, A)]]}, MODIFIERS))
    with pytest.raises(ValueError, match="spare"):
        keyboard.next_batch(chars("é"))


def test_a_text_with_more_foreign_characters_than_spare_keys_is_cut():
    batches = plan(make_keyboard(), chars("一二三四五"))
    assert [len(batch.strokes) for batch in batches] == [SPARE, 2]
    assert [batch.overwrites for batch in batches] == [False, True]


def test_a_later_text_that_reuses_a_keycode_says_so():
    keyboard = make_keyboard()
    keyboard.next_batch(chars("一二三"))
    keyboard.next_batch(chars("一"))
    batch = keyboard.next_batch(chars("四"))
    assert batch.overwrites and list(batch.remap) == [15]  # that of 二, the one least recently used


@given(st.lists(st.text(st.sampled_from("aA<一二三四五六é"), max_size=30), max_size=5))
def test_strokes_mean_the_text_at_the_time_they_are_sent(texts):
    keyboard = make_keyboard()
    meaning = {code: dict(groups[0]) if groups else {} for code, groups in ROWS.items()}
    for text in texts:
        typed = []
        for batch in plan(keyboard, chars(text)):
            overwritten = [keycode for keycode in batch.remap if meaning[keycode]]
            assert batch.overwrites == bool(overwritten)
            meaning.update({keycode: {0: keysym} for keycode, keysym in batch.remap.items()})
            typed += [meaning[stroke.keycode][stroke.modifiers] for stroke in batch.strokes]
        assert typed == chars(text)


def test_adjoining_keycodes_are_changed_together():
    assert runs({5: 1, 3: 2, 4: 3, 9: 4}) == [(3, [2, 3, 1]), (9, [4])]
