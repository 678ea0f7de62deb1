"""Builds a tiny, untrained vision-language model: an ordinary Hugging Face directory of the Qwen-VL family.

It is small enough to be trained on a CPU in minutes, and real in every other respect: Qwen's special tokens, chat
template and image processor, so whatever loads Qwen2.5-VL (or another family of `FAMILIES`) loads it.

The tokenizer is made for actions: frequent phrases, words and numbers are one token each, everything else falls
back to single characters, and other Unicode to bytes; so every text can be encoded and decodes back exactly.
Only `build_tiny_model` needs torch; the tokenizer does not.
"""

import dataclasses
import json
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import Unigram

from dart_agent.models.expert_weights import save_model
from dart_agent.models.families.family import TinyShape
from dart_agent.models.families.family_table import FAMILIES
from dart_gym.core.errors import ConfigurationError
from dart_gym.core.suggestions import suggest

SPECIAL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip

# What UI-TARS actions are made of. The longest match wins, so a click is five tokens and the end token.
ACTION_PHRASES = (
    "Thought: ", "\nAction: ", "Action: ", "Action: click(start_box='(", "Action: left_double(start_box='(",
    "Action: right_single(start_box='(", "Action: hover(start_box='(", "Action: drag(start_box='(",
    ")', end_box='(", "Action: scroll(start_box='(", ")', direction='", "Action: hotkey(key='",
    "Action: type(content='", "Action: wait()", "Action: finished(content='", "Action: finished()",
    "Action: call_user()", ")')", "')", "','", ", ", "\\n", "\\'", "\n\n",
    ' "', '".', "system\n", "user\n", "assistant\n",
    "ctrl", "shift", "alt", "enter", "tab", "esc", "space", "backspace", "delete", "home", "end", "pageup",
    "pagedown", "up", "down", "left", "right",
)  # fmt: skip

# Words of the bundled tasks' instructions; each also gets a token with a leading space.
INSTRUCTION_WORDS = (
    "Click", "click", "on", "the", "button", "Select", "select", "and", "in", "into", "Enter", "text", "textarea",
    "textbox", "input", "field", "header", "Focus", "Point", "point", "at", "box", "dialog", "close", "Close", "tab",
    "Tab", "link", "Submit", "submit", "press", "Press", "labeled", "checkbox", "checkboxes", "radio", "widget",
    "Expand", "section", "below", "grid", "coordinate", "then", "to", "of", "a", "with", "number", "color", "colored",
    "red", "green", "blue", "yellow", "OK", "Ok", "ok", "Okay", "okay", "Cancel", "cancel", "Yes", "yes", "No", "no",
    "Next", "next", "Previous", "previous", "ONE", "TWO", "x", "1st", "2nd", "3rd", "menu", "File", "Save", "file",
    "save", "Open", "open", "name", "username", "password", "Login", "login", "Type", "type",
    # the names that MiniWoB++ asks for
    "Agustina", "Alan", "Annis", "Ashlea", "Augus", "Beaulah", "Bernardine", "Briana", "Chas", "Cheree", "Cierra",
    "Cristin", "Dannie", "Deneen", "Dolores", "Donovan", "Emile", "Enola", "Ignacio", "Jerald", "Jess", "Joye", "Juan",
    "Kanesha", "Karrie", "Kasie", "Keli", "Kenda", "Keneth", "Leonie", "Livia", "Lyda", "Macie", "Marcella", "Michel",
    "Myron", "Nathalie", "Nieves", "Olin", "Renda", "Rex", "Riley", "Sergio", "Teodoro", "Thaddeus", "Tora", "Truman",
    "Tula", "Vanda", "Vina",
)  # fmt: skip


@dataclass(frozen=True)
class TinyModelConfig:
    """Size and shape of the tiny model.

    Attributes:
        family: a key of `FAMILIES`, the `model_type` of its class. Only qwen2_5_vl is trained in the quick start.
        heads: attention heads of both parts; both widths must be multiples of 8 * heads.
        vision_layers: depth of the vision tower; every block attends to the whole image unless `window` says otherwise.
        window: patches a side of the attention windows of the tower's first block, where the family has windows; 0 for
            none. The quick start's screens are so small that windows save nothing.
        tied: whether the output layer's weights are those of the embeddings.
        temporal_patch_size: frames per patch; 1 saves half of the patch embedding, Qwen has 2.
        numbers: integers below this are one token each (0: digits only); covers the screen's coordinates.
        words: one token each, and one more with a leading space.
        extra_words: more of them, for own tasks.
        image_mean: 1.0 makes a white page the zero vector: with CLIP's mean so small a model does not learn.
        rope_theta: base of the rotary embedding; small for short prompts.
        matrix_std: initial spread of the matrices.
        edge_std: initial spread of the patch embedding and the output layer.
        experts: of a layer, where the family is a mixture of them; two of them compute a token.
    """

    family: str = "qwen2_5_vl"
    hidden_size: int = 64
    layers: int = 3
    heads: int = 4
    intermediate_size: int = 192
    vision_hidden_size: int = 64
    vision_layers: int = 3
    vision_intermediate_size: int = 192
    window: int = 0
    tied: bool = False
    temporal_patch_size: int = 1
    numbers: int = 256
    words: tuple[str, ...] = INSTRUCTION_WORDS
    extra_words: tuple[str, ...] = ()
    image_mean: float = 1.0
    image_std: float = 0.25
    min_pixels: int = 28 * 28
    max_pixels: int = 1024 * 28 * 28
    max_length: int = 4096
    rope_theta: float = 10.0
    matrix_std: float = 0.06
    edge_std: float = 0.02
    experts: int = 4

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ConfigurationError(f"unknown family {self.family!r}; known: {', '.join(FAMILIES)}")
        for name in ("words", "extra_words"):  # lists, where the values come from a file
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("hidden_size", "vision_hidden_size"):
            if getattr(self, name) % (8 * self.heads):
                raise ConfigurationError(
                    f"{name} must be a multiple of 8 * heads = {8 * self.heads}, got {getattr(self, name)}"
                )

    @property
    def patch_size(self) -> int:
        """Side of a patch in pixels."""
        return FAMILIES[self.family].patch_size

    @property
    def shape(self) -> TinyShape:
        """The sizes that families spell in their own words."""
        return TinyShape(
            self.hidden_size,
            self.layers,
            self.heads,
            self.vision_hidden_size,
            self.vision_layers,
            self.vision_intermediate_size,
            self.window,
            self.experts,
        )


def config_from_values(values: Mapping[str, Any]) -> TinyModelConfig:
    """Return the configuration with some fields replaced, given as values or texts.

    Raises:
        ConfigurationError: if a field or value is invalid.
    """
    known = [field.name for field in dataclasses.fields(TinyModelConfig)]
    for name in values:
        if name not in known:
            raise ConfigurationError(f"the tiny model's configuration has no {name!r}; {suggest(name, known)}")
    try:
        return TypeAdapter(TinyModelConfig).validate_python(dict(values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigurationError(f"{first['loc'][0]}: {first['msg'].lower()} (got {first['input']!r})") from None


def config_from_text(items: Sequence[str]) -> TinyModelConfig:
    """Parse a configuration from `field=value` items, words with commas.

    Raises:
        ConfigurationError: if an item is invalid.
    """
    texts = {name: text for name, _, text in (item.partition("=") for item in items)}
    return config_from_values({name: text.split(",") if "words" in name else text for name, text in texts.items()})


def build_tokenizer(config: TinyModelConfig) -> Tokenizer:
    """The tokenizer of a tiny model: a Unigram model that takes the fewest tokens, with bytes as the last resort."""
    plain = dict.fromkeys(ACTION_PHRASES)
    plain.update(dict.fromkeys(str(number) for number in range(max(config.numbers, 10))))
    for word in (*config.words, *config.extra_words):
        plain.update({word: None, f" {word}": None})
    plain.update(dict.fromkeys(string.printable))
    # Equal scores: fewest tokens win. Special and byte tokens are never matched in text, however it is written.
    vocab = [(token, -1000.0) for token in SPECIAL_TOKENS]
    vocab += [(token, -1.0) for token in plain]
    vocab += [(f"<0x{byte:02X}>", -1000.0) for byte in range(256)]
    tokenizer = Tokenizer(Unigram(vocab, unk_id=0, byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return tokenizer


def build_tiny_model(directory: str | Path, *, seed: int = 0, config: TinyModelConfig | None = None) -> Path:
    """Write an untrained tiny model into a directory and return it: equal seeds and sizes give equal files."""
    import torch
    import transformers

    config = config or TinyModelConfig()
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model_class = getattr(transformers, FAMILIES[config.family].model_class)
        model = model_class(_model_config(config, tokenizer))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() >= 2:
                    edge = "patch_embed" in name or "lm_head" in name
                    parameter.normal_(0.0, config.edge_std if edge else config.matrix_std)
                elif name.endswith("A_log"):  # transformers draws states that forget all within two tokens
                    parameter.uniform_(-5.0, -1.0)
    save_model(model, path)
    write_processing(path, config)
    return path


def write_processing(directory: str | Path, config: TinyModelConfig) -> None:
    """Write all files of a tiny model but its weights and their shape: what clients of an engine need. No torch."""
    path = Path(directory)
    tokenizer = build_tokenizer(config)
    tokenizer.save(str(path / "tokenizer.json"))
    _write_json(path / "tokenizer_config.json", _tokenizer_config(config))
    (path / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    _write_json(path / "preprocessor_config.json", _preprocessor_config(config))
    end, pad = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    generation = {"do_sample": True, "temperature": 1.0, "eos_token_id": [end], "pad_token_id": pad}
    _write_json(path / "generation_config.json", generation)


def _model_config(config: TinyModelConfig, tokenizer: Tokenizer) -> Any:
    """The configuration of the family's class."""
    import transformers

    half = config.hidden_size // config.heads // 2
    temporal, height = half // 4, (half - half // 4) // 2
    sections = [temporal, height, half - temporal - height]
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta, "mrope_section": sections}
    family = FAMILIES[config.family]
    if family.interleaved:
        rope["mrope_interleaved"] = True
    token: Callable[[str], Any] = tokenizer.token_to_id  # never None: the tokens were added above
    text = {
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.heads,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.max_length,
        "rope_parameters": rope,
        "tie_word_embeddings": config.tied,
        "bos_token_id": None,
        "eos_token_id": token("<|im_end|>"),
        "pad_token_id": token("<|endoftext|>"),
    }
    return getattr(transformers, f"{family.classes}Config")(
        text_config=text | family.tiny_text(config.shape),
        vision_config=_vision_config(config) | family.tiny_vision(config.shape),
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=config.tied,
    )


def _vision_config(config: TinyModelConfig) -> dict[str, Any]:
    """Return what all families' configurations of a vision tower have in common."""
    return {
        "depth": config.vision_layers,
        "num_heads": config.heads,
        "patch_size": config.patch_size,
        "spatial_merge_size": 2,
        "temporal_patch_size": config.temporal_patch_size,
    }


def _tokenizer_config(config: TinyModelConfig) -> dict[str, Any]:
    own = FAMILIES[config.family].own_tokenizer
    return {
        # transformers reads a family with a tokenizer class of its own by that one whatever is named here, unless the
        # model seems to bring code, which nobody runs.
        **({"auto_map": {"AutoTokenizer": [None, "none.None"]}} if own else {}),
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_length,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "bos_token": None,
        "unk_token": None,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "additional_special_tokens": list(SPECIAL_TOKENS),
        "chat_template": CHAT_TEMPLATE,
    }


def _preprocessor_config(config: TinyModelConfig) -> dict[str, Any]:
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": FAMILIES[config.family].processor_class,
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [config.image_mean] * 3,
        "image_std": [config.image_std] * 3,
        "resample": 3,
        "rescale_factor": 1 / 255,
        "size": {"shortest_edge": config.min_pixels, "longest_edge": config.max_pixels},
        "patch_size": config.patch_size,
        "merge_size": 2,
        "temporal_patch_size": config.temporal_patch_size,
    }


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n")


# Qwen's layout: every message in <|im_start|>role ... <|im_end|>, an image as its pad between start and end.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' or 'image' in part or 'image_url' in part %}"
    "<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in part %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
