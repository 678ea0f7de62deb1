"""Sizes and coordinates: the published table, and one rounding rule on every path."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_agent.formats import get_format
from dart_agent.models.coordinates import CoordinateSpace, smart_resize
from dart_agent.models.image_patches import VisionSpec
from dart_gym.core import actions as a

FULL_HD = CoordinateSpace.for_image((1920, 1080))


@pytest.mark.parametrize(
    ("screen", "resized", "tokens"),
    [
        ((1920, 1080), (1932, 1092), 2691),
        ((1280, 720), (1288, 728), 1196),
        ((1366, 768), (1372, 756), 1323),
        ((3840, 2160), (3836, 2156), 10549),
        ((256, 256), (280, 280), 100),
    ],
)
def test_published_sizes(screen, resized, tokens):
    assert CoordinateSpace.for_image(screen).model == resized
    height, width = smart_resize(screen[1], screen[0])
    assert (width, height) == resized
    assert width * height // 28**2 == tokens
    spec = VisionSpec(min_pixels=100 * 28 * 28, max_pixels=16384 * 28 * 28)
    assert spec.space(screen[1], screen[0]) == CoordinateSpace.for_image(screen), "prompt and parser agree"


@pytest.mark.parametrize(("height", "width"), [(0, 5), (5, -1), (1, 201), (28 * 201, 28)])
def test_absurd_images_are_refused(height, width):
    with pytest.raises(ValueError, match="positive|aspect ratio"):
        smart_resize(height, width)


@given(st.integers(1, 4000), st.integers(1, 4000))
def test_resized_images_are_multiples_within_limits(height, width):
    if max(height, width) / min(height, width) > 200:
        return
    high, wide = smart_resize(height, width)
    assert high % 28 == wide % 28 == 0
    assert 100 * 28 * 28 <= high * wide <= 16384 * 28 * 28


def test_the_golden_click():
    x, y = FULL_HD.to_screen(960, 546)
    assert (round(x, 3), round(y, 3)) == (954.037, 540.0)
    assert FULL_HD.pixel(960, 546) == (954, 540)


@pytest.mark.parametrize(
    ("value", "pixel"),
    [(0, 0), (0.4, 0), (0.5, 0), (0.6, 1), (1.5, 2), (2.5, 2), (98.4, 98), (99.4, 99), (99.5, 99), (100, 99)]
    + [(100.4, 100), (100.6, 101), (-0.4, 0), (-0.6, -1), (5000, 5000)],
)
def test_the_rounding_rule(value, pixel):
    """Nearest, halves to even; the far edge is the last pixel; what is off the screen stays off."""
    assert CoordinateSpace((100, 100), (100, 100)).pixel(value, value) == (pixel, pixel)


@pytest.mark.parametrize("name", ["ui_tars", "ui_tars:1.0", "pyautogui", "openai", "qwen", "opencua"])
@pytest.mark.parametrize("screen", [(0, 100), (100, -1)])
def test_a_screen_has_a_size(name, screen):
    parsed = get_format(name).parse("Action: click(start_box='(1,2)')\n```\npyautogui.click(1, 2)\n```", screen)
    assert not parsed.actions and parsed.errors  # a value, as all errors of `parse` are


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_only_finite_points(bad):
    with pytest.raises(ValueError, match="finite"):
        FULL_HD.pixel(bad, 1)
    with pytest.raises(ValueError, match="finite"):
        FULL_HD.pixel(1, bad)


@pytest.mark.parametrize(("x", "y"), [(40.5, 41.5), (99.6, 0.4), (100, 100), (17.49, 17.51)])
def test_the_rule_is_the_same_on_every_path(x, y):
    size = (100, 100)
    expected = a.Click(*CoordinateSpace(size, size).pixel(x, y))
    qwen = {"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [x, y]}}
    anthropic = {"type": "tool_use", "name": "computer", "input": {"action": "left_click", "coordinate": [x, y]}}
    responses = {
        "ui_tars": f"Action: click(start_box='({x},{y})')",
        "computer_13": json.dumps({"action_type": "CLICK", "x": x, "y": y}),
        "pyautogui": f"```python\npyautogui.click({x}, {y})\n```",
        "opencua:absolute": f"```python\npyautogui.click({x}, {y})\n```",
        "openai": {"output": [{"type": "computer_call", "action": {"type": "click", "x": x, "y": y}}]},
        "anthropic": {"content": [anthropic]},
        "qwen:2.5": f"<tool_call>{json.dumps(qwen)}</tool_call>",
    }
    for name, response in responses.items():
        assert get_format(name).parse(response, CoordinateSpace(size, size)).actions == (expected,), name


@given(st.integers(28, 4000), st.integers(28, 4000), st.data())
def test_every_pixel_survives_the_model_s_numbers(width, height, data):
    model = data.draw(st.sampled_from([(1000, 1000), (999, 999), (1, 1), (1932, 1092), (280, 280)]))
    space = CoordinateSpace((width, height), model)
    x, y = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    assert space.pixel(*space.written(x, y)) == (x, y)
