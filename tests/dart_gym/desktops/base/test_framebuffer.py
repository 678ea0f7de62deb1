import os
import struct
from pathlib import Path

import numpy as np
import pytest

from dart_gym.core.errors import DesktopError
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.base.framebuffer import Cursor, Framebuffer, draw_cursor


def write_xwd(path, pixels: np.ndarray, padding: int = 0, bits: int = 32, colors: int = 3) -> None:
    height, width = pixels.shape[:2]
    words = [0] * 25
    words[0], words[1], words[2], words[3], words[4], words[5] = 108, 7, 2, 24, width, height
    words[11], words[12], words[19] = bits, width * 4 + padding, colors
    rows = np.zeros((height, width * 4 + padding), np.uint8)
    rows[:, : width * 4] = pixels.reshape(height, width * 4)
    path.write_bytes(struct.pack(">25I", *words) + b"name\0\0\0\0" + bytes(12 * colors) + rows.tobytes())


@pytest.mark.parametrize("padding", [0, 4])
def test_pixels_become_rgb(tmp_path, padding):
    bgra = np.random.default_rng(0).integers(0, 256, (5, 7, 4), np.uint8)
    write_xwd(tmp_path / "screen", bgra, padding)
    framebuffer = Framebuffer(tmp_path / "screen", DesktopSpec(width=7, height=5))
    frame = np.empty((5, 7, 3), np.uint8)
    framebuffer.draw(frame)
    assert (framebuffer.width, framebuffer.height) == (7, 5)
    np.testing.assert_array_equal(frame, bgra[:, :, 2::-1])


def test_a_margin_is_no_part_of_the_screen(tmp_path):
    bgra = np.random.default_rng(0).integers(0, 256, (5, 7, 4), np.uint8)
    write_xwd(tmp_path / "screen", bgra, padding=4)
    framebuffer = Framebuffer(tmp_path / "screen", DesktopSpec(width=7, height=3, margin=2))
    frame = np.empty((3, 7, 3), np.uint8)
    framebuffer.draw(frame)
    assert framebuffer.height == 3 and framebuffer.raw.shape == (3, 8)
    np.testing.assert_array_equal(frame, bgra[:3, :, 2::-1])
    np.testing.assert_array_equal(framebuffer.margin(), bgra[3:, :, 2::-1])


def test_other_pixel_formats_are_refused(tmp_path):
    write_xwd(tmp_path / "screen", np.zeros((2, 2, 4), np.uint8), bits=16)
    with pytest.raises(DesktopError, match="16 bits"):
        Framebuffer(tmp_path / "screen", DesktopSpec(width=2, height=2))


def test_a_screen_of_another_size_is_refused(tmp_path):
    write_xwd(tmp_path / "screen", np.zeros((2, 2, 4), np.uint8))
    with pytest.raises(DesktopError, match="2x2 pixels, not 2x3"):
        Framebuffer(tmp_path / "screen", DesktopSpec(width=2, height=3))


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_nothing_else_in_place_of_the_file_is_opened(tmp_path, kind):
    write_xwd(tmp_path / "other", np.zeros((2, 2, 4), np.uint8))
    if kind == "link":
        (tmp_path / "screen").symlink_to(tmp_path / "other")
    else:
        os.mkfifo(tmp_path / "screen")
    with pytest.raises((OSError, DesktopError)):
        Framebuffer(tmp_path / "screen", DesktopSpec(width=2, height=2))


def test_closing_lets_the_file_go_though_the_object_is_still_held(tmp_path):
    write_xwd(tmp_path / "screen", np.zeros((2, 3, 4), np.uint8))
    framebuffer = Framebuffer(tmp_path / "screen", DesktopSpec(width=3, height=2))

    def is_open() -> bool:
        return str(tmp_path / "screen") in {os.path.realpath(entry) for entry in Path("/proc/self/fd").iterdir()}

    assert is_open()
    framebuffer.close()
    assert not is_open()


def test_a_frame_that_is_being_read_outlives_the_closing(tmp_path):
    write_xwd(tmp_path / "screen", np.full((2, 3, 4), 7, np.uint8))
    framebuffer = Framebuffer(tmp_path / "screen", DesktopSpec(width=3, height=2))
    raw = framebuffer.raw
    framebuffer.close()
    assert (raw == 0x07070707).all()


def test_opaque_cursor_pixels_replace_and_transparent_ones_keep():
    frame = np.full((4, 4, 3), 100, np.uint8)
    pixels = np.zeros((2, 2, 4), np.uint8)
    pixels[0, 0] = (10, 20, 30, 255)  # BGRA
    draw_cursor(frame, Cursor(1, 2, pixels))
    assert tuple(frame[2, 1]) == (30, 20, 10)
    frame[2, 1] = 100
    assert (frame == 100).all()


def test_half_transparent_cursor_pixels_blend():
    frame = np.full((1, 1, 3), 200, np.uint8)
    draw_cursor(frame, Cursor(0, 0, np.array([[[0, 0, 128, 128]]], np.uint8)))
    np.testing.assert_allclose(frame[0, 0], [228, 100, 100], atol=1)


@pytest.mark.parametrize(("x", "y"), [(-1, -1), (3, 3), (-5, 0), (0, 9), (4, 0)])
def test_cursor_is_clipped_at_the_edges(x, y):
    frame = np.zeros((4, 4, 3), np.uint8)
    draw_cursor(frame, Cursor(x, y, np.full((2, 2, 4), 255, np.uint8)))
    expected = np.zeros((4, 4, 3), np.uint8)
    for row in range(4):
        for column in range(4):
            if x <= column < x + 2 and y <= row < y + 2:
                expected[row, column] = 255
    np.testing.assert_array_equal(frame, expected)
