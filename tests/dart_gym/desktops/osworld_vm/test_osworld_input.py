"""Keyboard and pointer of a machine with OSWorld's server: exact, by the code of the embedded desktop."""

import ast

import pytest

from dart_gym.core.actions import KeyDown, KeyUp, Press, Type
from dart_gym.desktops.base.desktop import ActionError, DesktopSpec, SettlePolicy
from dart_gym.desktops.factory import make_desktop
from dart_gym.desktops.osworld_api.api_server import OSWorldAPI
from dart_gym.desktops.osworld_vm.remote_input import decoded, encoded
from dart_gym.desktops.osworld_vm.sent_program import SENT, module_source
from dart_gym.desktops.xvfb.x_keys import KeyMemory
from tests.dart_gym.desktops.test_drags import Program, parts
from tests.dart_gym.desktops.test_keyboard_layouts import Editor

TEXT = 'zyA!"<>|@€ é ß ф 中 Q1'
KEYBOARDS = [
    ("setxkbmap de", ()),
    ("setxkbmap us,ru -option grp:win_space_toggle", ("win", "space")),
    ("setxkbmap ru", ("capslock",)),
    ("xmodmap -e 'keycode 38 = q Q' -e 'keycode 24 = a A' -e 'keycode 10 = exclam 1 bar at'", ("numlock",)),
    ("setxkbmap us; xmodmap -e 'clear shift' -e 'keycode 50 =' -e 'keycode 62 ='", ("capslock",)),  # no Shift_L
]
"""Commands that set a keyboard map, and the keys that are pressed under it before a text is typed."""
SIZE = {"width": 800, "height": 600}


@pytest.fixture
async def remote():
    """A desktop behind OSWorld's routes, as a machine elsewhere."""
    local = make_desktop(DesktopSpec(profile="osworld", **SIZE))
    await local.start()
    async with OSWorldAPI(local, open_to_all=True) as served:
        desktop = make_desktop(DesktopSpec(kind="osworld", url=served.address.url, **SIZE))
        await desktop.start(timeout=20.0)
        yield desktop
        await desktop.stop()
    await local.stop()


@pytest.fixture
async def editor(remote, until):
    async def given(**_):
        return remote

    program = Editor("mousepad")
    await program.open(given, until)
    await program.clear()
    return program


@pytest.mark.thorough
@pytest.mark.desktop
async def test_a_text_is_typed_as_asked_whatever_the_keyboard_is_like(remote, editor):
    for command, keys in KEYBOARDS:
        assert (await remote.execute(["sh", "-c", command])).returncode == 0
        if keys:
            await remote.perform(Press(keys))
        await remote.perform(Type(TEXT))
        await remote.perform(Press(("num7",)))
        assert (command, await editor.read(TEXT + "7")) == (command, TEXT + "7")
        await remote.release_inputs()
        locks = (await remote.execute(["xset", "q"])).stdout
        assert b"Caps Lock:   off" in locks and b"Num Lock:    off" in locks
        await editor.clear()


@pytest.mark.thorough
@pytest.mark.desktop
async def test_spare_keys_are_used_again_and_held_keys_are_found_again(remote, editor):
    texts = ["".join(chr(first + i) for i in range(100)) for first in (0x4E00, 0x4F00, 0x5000, 0x4E00)]
    for text in texts:
        await remote.perform(Type(text))
    assert await editor.read("".join(texts)) == "".join(texts)
    await remote.perform(KeyDown("shift"))
    await remote.execute(["setxkbmap", "de"])
    await remote.perform(KeyUp("shift"))
    await editor.clear()
    await remote.perform(Press(("z",)))
    assert await editor.read("z") == "z"
    every_key_taken = [part for code in range(9, 256) for part in ("-e", f"keycode {code} = q Q")]
    await remote.execute(["xmodmap", *every_key_taken])
    with pytest.raises(ActionError, match="none to spare"):
        await remote.perform(Type("é"))
    assert remote.alive


@pytest.mark.thorough
@pytest.mark.desktop
async def test_a_drag_by_its_parts_drops_a_row(remote, until):
    async def given(**_):
        return remote

    program = Program("gtk_window.py")
    await program.open(given, until)
    await remote.settle(SettlePolicy(quiet_ms=100, max_ms=5000))
    places = (await program.state())["places"]
    (x, first), (_, second), (_, third) = (places[f"row {number}"] for number in (1, 2, 3))
    for action in parts((x, first), (x + 9, second), (x, third + 2 * (second - first) // 5)):
        await remote.perform(action)

    async def moved():
        return (await program.state())["rows"] == ["row 2", "row 3", "row 1", "row 4"]

    await until(moved, 10)


def test_the_sent_modules_are_complete_and_as_old_as_the_python_of_osworlds_machines():
    for name in SENT:
        tree = ast.parse(module_source(name), feature_version=(3, 10))
        used = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
        assert {one for one in used if one.startswith("dart_gym.")} <= set(SENT)


def test_the_state_of_a_keyboard_survives_as_numbers_and_nonsense_is_no_state():
    memory = KeyMemory([(9, 0x1004E2D), (14, 0)], {0xFFE1: 50}, 77)
    assert decoded(encoded(memory)) == memory
    assert decoded([]) == decoded([7, 1, 2, 1, 999, 3, 0]) == KeyMemory([], {}, None)
