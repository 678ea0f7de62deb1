"""Our prompts are those of the models' own processors: ids, pixels, grids and token types.

In transformers the processors of Qwen's models need torchvision (for videos), which the package does not; they run in
the environment of vLLM, where it is.
"""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from dart_agent.engines.base.engine import Prompt
from dart_agent.engines.http.chat_messages import chat_messages
from dart_agent.engines.http.image_encoding import encode
from dart_agent.models.families.family_table import FAMILIES
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.tiny_model import TinyModelConfig, write_processing
from dart_agent.prompting.conversation import Conversation, ConversationConfig
from tests.helpers.vllm_server import PROGRAM

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

THEIRS = """
import base64, io, json, sys
import numpy as np
from PIL import Image
from transformers import AutoProcessor

for directory in sys.argv[1:]:
    processor = AutoProcessor.from_pretrained(directory)
    print(type(processor).__name__)
    for index, messages in enumerate(json.load(open(f"{directory}/messages.json"))):
        images = [
            Image.open(io.BytesIO(base64.b64decode(part["image_url"]["url"].partition(",")[2])))
            for message in messages if isinstance(message["content"], list)
            for part in message["content"] if part["type"] == "image_url"
        ]
        text = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        got = processor(text=[text], images=images, return_tensors="np")
        np.savez(f"{directory}/{index}.npz", **{name: np.asarray(value) for name, value in got.items()})
"""
SIZES = [(112, 84), (200, 333), (64, 64), (168, 96), (90, 130), (96, 96), (80, 100)]


def screen(seed: int, height: int, width: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def write_model(directory: Path, family: str) -> tuple[ModelTokens, VisionSpec]:
    """All files that a processor reads."""
    write_processing(directory, TinyModelConfig(family=family, temporal_patch_size=2))
    (directory / "config.json").write_text(json.dumps({"model_type": family}))
    shutil.copy(directory / "preprocessor_config.json", directory / "video_preprocessor_config.json")
    return ModelTokens.load(directory), VisionSpec.from_dir(directory)


def play(tokens: ModelTokens, vision: VisionSpec, style: str) -> list[Prompt]:
    """The prompts of an episode with screens of different sizes, odd words and an error."""
    conversation = Conversation(tokens, vision, ConversationConfig(style=style, screenshots=5, block=3))
    conversation.begin("Click on 'Überschrift', then type 42 into the textbox 你好")
    prompts = []
    for step, size in enumerate(SIZES):
        conversation.observe(screen(step, *size), "no such place" if step == 2 else "")
        prompts.append(conversation.prompt())
        conversation.respond(tokens.response(f"Action: click(start_box='({step},7)')"))
    return prompts


def test_prompts_equal_the_processors(tmp_path):
    cases = []
    for family in FAMILIES:
        for style in ("ui_tars", "short"):
            directory = tmp_path / f"{family}-{style}"
            directory.mkdir()
            tokens, vision = write_model(directory, family)
            prompts = play(tokens, vision, style)
            (directory / "messages.json").write_text(
                json.dumps(
                    [
                        chat_messages(prompt, tokens, [encode(image).url for image in prompt.images])
                        for prompt in prompts
                    ]
                )
            )
            cases.append((directory, tokens, vision, prompts))
    argv = [str(PROGRAM.with_name("python")), "-c", THEIRS, *(str(case[0]) for case in cases)]
    done = subprocess.run(argv, capture_output=True, text=True, env={"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == [FAMILIES[family].processor_class for family in FAMILIES for _ in range(2)]
    for directory, tokens, vision, prompts in cases:
        for index, prompt in enumerate(prompts):
            theirs = np.load(directory / f"{index}.npz")
            assert tuple(theirs["input_ids"][0].tolist()) == prompt.token_ids
            assert np.array_equal(theirs["mm_token_type_ids"][0], tokens.mm_token_type_ids(prompt.token_ids))
            assert theirs["image_grid_thw"].tolist() == [list(vision.grid(image)) for image in prompt.images]
            ours = np.concatenate([vision.patchify(image) for image in prompt.images])
            assert np.abs(theirs["pixel_values"] - ours).max() < 1e-5
