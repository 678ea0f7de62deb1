"""Our prompts are those of the models' own processors: ids, pixels, grids and token types.

In transformers the processors of Qwen's models need torchvision (for videos), which the package does not; they run in
the environment of vLLM, where it is.
"""

import json
import subprocess

import numpy as np
import pytest

from dart_agent.conversation import Conversation, ConversationConfig
from dart_agent.engines.messages import chat_messages
from dart_agent.tiny import FAMILIES, TinyModelConfig, write_processing
from dart_agent.tokens import ModelTokens
from dart_agent.vision import VisionSpec
from tests.vllm_server import PROGRAM

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

THEIRS = """
import base64, io, json, sys
import numpy as np
from PIL import Image
from transformers import AutoProcessor

directory, out = sys.argv[1:]
processor = AutoProcessor.from_pretrained(directory)
rows = []
for index, messages in enumerate(json.load(open(f"{directory}/messages.json"))):
    images = [
        Image.open(io.BytesIO(base64.b64decode(part["image_url"]["url"].partition(",")[2])))
        for message in messages if isinstance(message["content"], list)
        for part in message["content"] if part["type"] == "image_url"
    ]
    text = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    got = processor(text=[text], images=images or None, return_tensors="np")
    np.savez(f"{out}/{index}.npz", **{name: np.asarray(value) for name, value in got.items()})
print(type(processor).__name__)
"""


def screen(seed: int, height: int, width: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("style", ["ui_tars", "short"])
def test_prompts_equal_the_processors(family, style, tmp_path):
    write_processing(tmp_path, TinyModelConfig(family=family, temporal_patch_size=2))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        settings = json.loads((tmp_path / "preprocessor_config.json").read_text())
        (tmp_path / name).write_text(json.dumps(settings))
    tokens, vision = ModelTokens.load(tmp_path), VisionSpec.from_dir(tmp_path)
    conversation = Conversation(tokens, vision, ConversationConfig(style=style, screenshots=5, block=3))
    conversation.begin("Click on 'Überschrift', then type 42 into the textbox 你好")
    prompts = []
    for step, size in enumerate([(112, 84), (200, 333), (64, 64), (168, 96), (90, 130), (96, 96), (80, 100)]):
        conversation.observe(screen(step, *size), "no such place" if step == 2 else "")
        prompts.append(conversation.prompt())
        conversation.respond(tokens.response(f"Action: click(start_box='({step},7)')"))
    (tmp_path / "messages.json").write_text(json.dumps([chat_messages(prompt, tokens) for prompt in prompts]))
    argv = [str(PROGRAM.with_name("python")), "-c", THEIRS, str(tmp_path), str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, env={"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split()[-1] == FAMILIES[family][1]
    for index, prompt in enumerate(prompts):
        theirs = np.load(tmp_path / f"{index}.npz")
        assert tuple(theirs["input_ids"][0].tolist()) == prompt.token_ids
        assert np.array_equal(theirs["mm_token_type_ids"][0], tokens.mm_token_type_ids(prompt.token_ids))
        assert theirs["image_grid_thw"].tolist() == [list(vision.grid(image)) for image in prompt.images]
        ours = np.concatenate([vision.patchify(image) for image in prompt.images])
        assert np.abs(theirs["pixel_values"] - ours).max() < 1e-5
