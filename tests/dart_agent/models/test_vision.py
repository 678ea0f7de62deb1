"""Our patches are those of the Hugging Face processor, to the last bit."""

import json

import numpy as np
import pytest

from dart_agent.models.image_patches import VisionSpec
from dart_gym.core.errors import ConfigurationError

QWEN = {
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "image_processor_type": "Qwen2VLImageProcessor",
    "max_pixels": 12845056,
    "min_pixels": 3136,
    "merge_size": 2,
    "patch_size": 14,
    "temporal_patch_size": 2,
}
TINY = QWEN | {"image_mean": [1.0] * 3, "image_std": [0.25] * 3, "min_pixels": 784, "temporal_patch_size": 1}
SIZED = {k: v for k, v in QWEN.items() if not k.endswith("_pixels")} | {
    "size": {"shortest_edge": 100 * 784, "longest_edge": 300 * 784}
}


def image(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height * width).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.train
@pytest.mark.parametrize("settings", [QWEN, TINY, SIZED], ids=["qwen", "tiny", "sized"])
@pytest.mark.parametrize("size", [(224, 168), (168, 224), (100, 77), (13, 50), (720, 1280)])
def test_patches_equal_hugging_face(tmp_path, settings, size):
    from transformers import AutoImageProcessor

    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    theirs = AutoImageProcessor.from_pretrained(tmp_path, use_fast=False)(images=[image(*size)], return_tensors="np")
    spec = VisionSpec.from_dir(tmp_path)
    ours = spec.patchify(image(*size))
    assert ours.dtype == np.float32
    assert ours.shape[1] == spec.patch_dim
    assert np.array_equal(ours, theirs["pixel_values"])
    assert [list(spec.grid(image(*size)))] == theirs["image_grid_thw"].tolist()
    assert spec.num_tokens(image(*size)) * 4 == len(ours)


def test_white_is_zero_for_the_tiny_model(vision):
    assert not vision.patchify(np.full((28, 28, 3), 255, np.uint8)).any()


def test_resizing_is_idempotent(vision):
    resized = vision.resize(image(100, 77))
    assert resized.shape == (112, 84, 3)
    assert vision.resize(resized) is resized
    assert np.array_equal(vision.patchify(resized), vision.patchify(image(100, 77)))
    assert vision.grid(resized) == vision.grid(image(100, 77))


def test_coordinates_are_those_of_the_resized_image(vision):
    assert vision.space(224, 168).to_screen(10, 20) == (10, 20)
    assert vision.space(100, 77).model == (84, 112)


def test_processor_config_is_read_too(tmp_path):
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": QWEN}))
    assert VisionSpec.from_dir(tmp_path).max_pixels == 12845056


def test_errors(tmp_path):
    with pytest.raises(ConfigurationError, match=r"preprocessor_config\.json"):
        VisionSpec.from_dir(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(QWEN | {"do_resize": False}))
    with pytest.raises(ConfigurationError, match="does not resize"):
        VisionSpec.from_dir(tmp_path)
