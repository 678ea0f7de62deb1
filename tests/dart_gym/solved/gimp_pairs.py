"""Pairs of GIMP: exported by the keys of OSWorld's evaluators, or worked on in a terminal."""

from __future__ import annotations

from typing import Any

from PIL import Image, ImageDraw

from tests.dart_gym.solved import media
from tests.dart_gym.solved.solved_pairs import (
    DESKTOP,
    HUB,
    IDLE,
    SolvedPair,
    cloud_file,
    download,
    judged,
    lines_in_terminal,
    press,
    pyautogui,
    rule,
    step,
    typed,
    until,
    vm_file,
)

GIMP = f"{HUB}gimp/"


def cloud(name: str) -> dict[str, Any]:
    return cloud_file(GIMP + name)


def exported(name: str) -> list[dict[str, Any]]:
    """The postconfig with which OSWorld exports the picture that is open."""
    return [
        step("activate_window", window_name="GNU Image Manipulation Program"),
        pyautogui('time.sleep(1);pyautogui.hotkey(["shift", "ctrl", "e"]);'),
        step("sleep", seconds=0.5),
        pyautogui(f'time.sleep(1);pyautogui.write("{name}");time.sleep(1);pyautogui.press(["enter"]);'),
        step("sleep", seconds=2),
        pyautogui('pyautogui.press(["enter"]);'),
        step("sleep", seconds=5),
    ]


def opened(name: str) -> list[dict[str, Any]]:
    return [
        download(**{f"{DESKTOP}/{name}": GIMP + name}),
        step("launch", command=["gimp", f"{DESKTOP}/{name}"]),
    ]


def action(words: str, *keys: str) -> list[dict[str, Any]]:
    """An action of GIMP's menus, found by its search; `keys` after its name."""
    return [typed("/"), typed(words), *press(*keys)]


MIRRORED = SolvedPair(
    "gimp/mirrored",
    judged(
        (*("check_image_mirror", vm_file(f"{DESKTOP}/berry_mirror.png")), vm_file(f"{DESKTOP}/berry.png")),
        postconfig=exported("berry_mirror"),
    ),
    [*action("flip horizontally", "down", "enter"), until(**IDLE)],
    opened("berry.png"),
    {GIMP + "berry.png": lambda: media.saved_as(media.photo())},
    fresh=True,
)
PALETTE = SolvedPair(
    "gimp/palette",
    judged(
        ("check_palette_and_structure_sim", vm_file(f"{DESKTOP}/palette_computer.png"), cloud("computer.png")),
        postconfig=exported("palette_computer"),
    ),
    [*action("indexed", "enter", "enter"), until(**IDLE)],
    opened("computer.png"),
    {GIMP + "computer.png": lambda: media.saved_as(media.photo())},
    fresh=True,
)
HISTORY = {"type": "vm_command_line", "command": "cat /home/user/.config/GIMP/2.10/action-history", "shell": True}
VIGNETTE = SolvedPair(
    "gimp/vignette",
    judged(
        ("check_include_exclude", HISTORY, rule(include=["filters-vignette"], exclude=["error", "failed"])),
        postconfig=[
            pyautogui('pyautogui.press(["esc"]);time.sleep(1);pyautogui.hotkey(["ctrl", "q"]);time.sleep(1);'),
            pyautogui('pyautogui.press(["right"]);time.sleep(1);pyautogui.press(["enter"])'),
            step("sleep", seconds=0.5),
        ],
    ),
    [*action("vignette", "enter"), until(**IDLE)],
    opened("berry.png"),
    MIRRORED.files,
    fresh=True,
)


def figure(*, x: int, width: int = 60, color: str = "yellow", under: str = "white") -> bytes:
    """A box of one colour on another, and a dot, so that the box's colour is not the rarest."""
    image = Image.new("RGB", (200, 200), under)
    ImageDraw.Draw(image).rectangle((x, 60, x + width, 140), fill=color)
    image.paste("gray", (190, 190, 195, 195))
    return media.saved_as(image)


WORKED_ON = SolvedPair(
    "gimp/worked-on",
    judged(
        *(
            (func, vm_file(f"{DESKTOP}/{done}.png"), cloud("photo.png"))
            for func, done in {
                "check_brightness_decrease_and_structure_sim": "edited_darker",
                "check_contrast_increase_and_structure_sim": "berries_contrast",
                "check_saturation_increase_and_structure_sim": "edited_colorful",
                "check_structure_sim": "dog_without_background",
                "check_structure_sim_resized": "resized",
            }.items()
        ),
        ("check_image_size", vm_file(f"{DESKTOP}/resized.png"), rule(height=512, ignore_transparent=True)),
        (
            *("check_file_exists_and_structure_sim", vm_file(f"{DESKTOP}/export.jpg")),
            vm_file(f"{DESKTOP}/photo.png"),
        ),
        ("check_triangle_position", vm_file(f"{DESKTOP}/Triangle_In_The_Middle.png"), None),
        ("check_textbox_on_leftside", vm_file(f"{DESKTOP}/leftside_textbox.png"), None),
        ("check_green_background", vm_file(f"{DESKTOP}/green_background.png"), cloud("white_background.png")),
        (
            *("check_config_status", {"type": "gimp_config_file", "file_name": "gimprc", "dest": "gimprc"}),
            rule(key="undo-levels", value="100"),
        ),
    ),
    lines_in_terminal(
        "cd Desktop; convert photo.png -modulate 80 edited_darker.png",
        "convert photo.png -level 20%,80% berries_contrast.png",
        "convert photo.png -modulate 100,140 edited_colorful.png",
        "cp photo.png dog_without_background.png; convert photo.png -resize x512 resized.png",
        "convert photo.png -quality 98 export.jpg",
        "convert triangle.png -roll +60+0 PNG24:Triangle_In_The_Middle.png",
        "convert textbox.png -roll -115+0 PNG24:leftside_textbox.png",
        "convert white_background.png -fill lime +opaque black PNG24:green_background.png",
        "mkdir -p ~/.config/GIMP/2.10; echo '(undo-levels 100)' >> ~/.config/GIMP/2.10/gimprc",
    ),
    [
        download(
            **{
                f"{DESKTOP}/{name}": GIMP + name
                for name in ("photo.png", "triangle.png", "textbox.png", "white_background.png")
            },
            **{f"{DESKTOP}/Triangle_In_The_Middle.png": GIMP + "triangle.png"},
            **{f"{DESKTOP}/leftside_textbox.png": GIMP + "textbox.png"},
            **{f"{DESKTOP}/green_background.png": GIMP + "white_background.png"},
            **{f"{DESKTOP}/berries_contrast.png": GIMP + "photo.png"},
            **{f"{DESKTOP}/edited_darker.png": GIMP + "photo.png"},
        )
    ],
    {
        GIMP + "photo.png": lambda: media.saved_as(media.photo()),
        GIMP + "triangle.png": lambda: figure(x=10),
        GIMP + "textbox.png": lambda: figure(x=120, color="black"),
        GIMP + "white_background.png": lambda: figure(x=50, color="black"),
    },
)

PAIRS = [MIRRORED, PALETTE, VIGNETTE, WORKED_ON]
