"""The tiny model is an ordinary Hugging Face directory."""

import json
import subprocess
import sys

import numpy as np
import pytest

from dart_agent.models.families.family_table import FAMILIES
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model

pytestmark = pytest.mark.train


def test_loads_with_the_auto_classes(tiny_dir, tokens):
    from transformers import AutoConfig, AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

    config = AutoConfig.from_pretrained(tiny_dir)
    assert config.model_type == "qwen2_5_vl"
    assert config.image_token_id == tokens.image_pad_id
    tokenizer = AutoTokenizer.from_pretrained(tiny_dir)
    assert tokenizer.encode("<|im_start|>user\nhi") == [tokens.im_start_id, *tokens.encode("user\nhi")]
    assert tokenizer.decode(tokenizer.encode("Click  on the")) == "Click  on the"
    assert tokenizer.eos_token_id == tokens.im_end_id
    assert len(tokenizer) == config.text_config.vocab_size
    images = AutoImageProcessor.from_pretrained(tiny_dir)(images=[np.zeros((224, 168, 3), np.uint8)])
    assert images["image_grid_thw"].tolist() == [[1, 16, 12]]
    model = AutoModelForImageTextToText.from_pretrained(tiny_dir)
    assert sum(p.numel() for p in model.parameters()) < 1_000_000


def test_chat_template_is_the_layout_of_conversations(tiny_dir, tokens, vision):
    from transformers import AutoTokenizer

    from dart_agent.prompting.conversation import Conversation, ConversationConfig

    content = [{"type": "text", "text": "Click it"}, {"type": "image"}]
    text = AutoTokenizer.from_pretrained(tiny_dir).apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
    )
    conversation = Conversation(tokens, vision, ConversationConfig(style="short"))
    conversation.begin("Click it")
    conversation.observe(np.zeros((28, 28, 3), np.uint8))
    assert tuple(tokens.encode_markup(text)) == conversation.prompt().token_ids


def test_seed_decides_the_weights(tmp_path):
    files = [
        (build_tiny_model(tmp_path / name, seed=seed) / "model.safetensors").read_bytes()
        for name, seed in (("a", 3), ("b", 3), ("c", 4))
    ]
    assert files[0] == files[1] != files[2]


def test_shape_is_a_parameter(tmp_path):
    config = TinyModelConfig(hidden_size=96, layers=2, vision_hidden_size=32, vision_layers=1, temporal_patch_size=2)
    written = json.loads((build_tiny_model(tmp_path, config=config) / "config.json").read_text())
    assert written["text_config"]["hidden_size"] == 96
    assert sum(written["text_config"]["rope_parameters"]["mrope_section"]) == 12
    assert written["vision_config"]["fullatt_block_indexes"] == [0]
    assert written["vision_config"]["temporal_patch_size"] == 2


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_file_says_what_published_ones_say_and_vllm_reads(tmp_path, family):
    """transformers knows it by the family, and writes nothing of it; vLLM's defaults are those of older families."""
    config = TinyModelConfig(layers=2, vision_layers=1, family=family)
    text = json.loads((build_tiny_model(tmp_path, config=config) / "config.json").read_text())["text_config"]
    assert text["rope_parameters"].get("mrope_interleaved", False) == family.startswith("qwen3")
    assert text.get("norm_topk_prob", False) == family.endswith("_moe")


def test_clients_need_no_torch():
    modules = (
        "policies.vlm_policy, policies.oracle_policy, policies.random_policy, engines.remote.remote_engine, "
        "prompting.conversation, evaluation.evaluate, models.tiny_model"
    )
    code = "import sys\n" + "".join(f"import dart_agent.{module}\n" for module in modules.split(", "))
    code += "assert not {'torch', 'transformers'} & set(sys.modules), 'heavy import'"
    subprocess.run([sys.executable, "-c", code], check=True)
