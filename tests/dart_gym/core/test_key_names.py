"""Names of keys: those of X, of browsers and of pyautogui mean the same keys; suggestions do not repeat themselves."""

import pytest
from Xlib import XK

from dart_gym.core.keys import KEYS, canonical_key
from dart_gym.core.keysyms import keysym_meaning, keysym_value
from dart_gym.desktops.input.requested_keys import keysym_of


@pytest.mark.parametrize(
    ("name", "key"),
    [
        *(("underscore", "_"), ("parenleft", "("), ("exclam", "!"), ("numbersign", "#"), ("UNDERSCORE", "_")),
        *(("eacute", "é"), ("Eacute", "É"), ("EACUTE", "é"), ("Cyrillic_ya", "я"), ("EuroSign", "€")),
        *(("U20AC", "€"), ("u+20ac", "€"), ("0xff0d", "enter"), ("0x41", "A")),
        *(("Meta_L", "win"), ("Super_R", "winright"), ("ISO_Level3_Shift", "altright"), ("Hyper_L", "Hyper_L")),
        *(("KP_Delete", "delete"), ("KP_Page_Up", "pageup"), ("KP_Begin", "KP_Begin"), ("KP_7", "num7")),
        *(("XF86AudioNext", "XF86AudioNext"), ("xf86audionext", "XF86AudioNext"), ("XF86AudioMute", "volumemute")),
        *(("Return", "enter"), ("Prior", "pageup"), ("nobreakspace", "\u00a0"), ("dead_acute", "dead_acute")),
        *(("KeyA", "a"), ("Digit5", "5"), ("NumpadEnter", "numenter"), ("ControlOrMeta", "ctrl")),
        *(("ｅｎｔｅｒ", "enter"), ("Page-Down", "pagedown"), ("e\u0301", "é")),
        *(
            ("⌘", "win"),
            ("⌥", "alt"),
            ("⇧", "shift"),
            ("⏎", "enter"),
            ("⌫", "backspace"),
            ("↓", "down"),
            ("U2318", "win"),
        ),
        *(("left ctrl", "ctrl"), ("right_alt", "altright"), ("lshift", "shift"), ("RWin", "winright"), ("OS", "win")),
    ],
)
def test_names(name, key):
    assert canonical_key(name) == key
    assert canonical_key(key) == key, "a canonical name is one of itself"
    assert keysym_of(key) > 0


def test_every_name_that_x_defines_is_a_key():
    names = [name.removeprefix("XK_") for name in dir(XK) if name.startswith("XK_")]
    assert len(names) > 300
    unknown = [name for name in names if not keysym_meaning(name)]
    assert not unknown
    for name in names:
        assert keysym_of(canonical_key(name)) > 0


def test_keysyms_are_those_that_xlib_knows():
    for group in ("latin1", "miscellany", "xf86"):
        XK.load_keysym_group(group)
    for name in ("Return", "KP_Add", "Hyper_L", "F24", "underscore", "Page_Up"):
        assert keysym_value(name) == XK.string_to_keysym(name)
    assert keysym_value("XF86AudioNext") == XK.string_to_keysym("XF86_AudioNext")
    assert all(keysym_of(name) for name in KEYS)


@pytest.mark.parametrize("name", ["lefft", "rihgt", "ctrll", "pgupp", "entr", "shfit"])
def test_suggestions_name_each_key_once(name):
    with pytest.raises(ValueError, match="did you mean") as caught:
        canonical_key(name)
    suggested = [part.strip("'?") for part in str(caught.value).partition("did you mean ")[2].split(" or ")]
    assert len({canonical_key(one) for one in suggested}) == len(suggested)


@pytest.mark.parametrize("name", ["", "nosuch", "alt-left", "ctrl+c", "U12", "0x", "x" * 10_000, "\ud800", "U+D800"])
def test_what_is_no_key(name):
    with pytest.raises(ValueError, match="key") as caught:
        canonical_key(name)
    assert len(str(caught.value).encode()) < 300
