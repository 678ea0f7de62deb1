"""A model's tokens without torch and transformers: text <-> ids, and the ids that have a meaning.

Invariants:
    - `encode` reads all text as plain text: an instruction that spells `<|im_end|>` cannot end a turn.
    - `suppressed_ids` are the special tokens that a response can never hold. Engine and trainer leave them out of
      the softmax alike, so log-probabilities agree.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from tokenizers import AddedToken, Tokenizer

from dart_gym.core.errors import ConfigurationError

# Special tokens that belong into responses: UI-TARS and Qwen-VL write boxes with them.
_WRITABLE = frozenset(
    {"<|box_start|>", "<|box_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|quad_start|>", "<|quad_end|>"}
)
POINTER_TOKENS = ("<|recipient|>", "<|diff_marker|>", "<|pointer_start|>", "<|pointer_end|>", "<|pointer_pad|>")
"""Tokens that GUI-Actor adds to the vocabulary; the last one is <ACTOR>."""
_MARKUP = re.compile(r"(<\|[a-z_]+\|>|\{[a-z]+\})")


@dataclass(frozen=True, slots=True)
class ModelTokens:
    """The tokens of one model.

    Attributes:
        vision_start_id: precedes the pads of an image.
        vision_end_id: follows them.
        image_pad_id: one for every merged patch.
        stop_ids: end a response.
        suppressed_ids: never sampled, left out of the softmax; sorted. Those are special tokens and `unreachable_ids`.
        highest_id: the largest id of any token; ids need not be without gaps.
        unreachable_ids: rows of the model's head that stand for no token, because the head was padded or the tokenizer
            has gaps; sorted.
    """

    im_start_id: int
    im_end_id: int
    vision_start_id: int
    vision_end_id: int
    image_pad_id: int
    pad_id: int
    stop_ids: tuple[int, ...]
    suppressed_ids: tuple[int, ...]
    vocab_size: int
    highest_id: int
    unreachable_ids: tuple[int, ...]
    _tokenizer: Tokenizer = field(repr=False, compare=False)

    @classmethod
    def load(cls, model_dir: str | Path, more: Sequence[str] = ()) -> ModelTokens:
        """Read a directory's tokenizer, with `more` special tokens.

        Raises:
            ConfigurationError: if the tokenizer does not belong to the family.
        """
        path = Path(model_dir) / "tokenizer.json"
        if not path.is_file():
            raise ConfigurationError(f"{path} does not exist: is {model_dir} a directory of a model?")
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in more])
        return cls._of(tokenizer, _stop_ids(Path(model_dir)), str(path), _head_rows(Path(model_dir)))

    def difference(self, other: ModelTokens) -> str:
        """Return where the ids of another tokenizer mean something else, in one line; "" where all mean the same."""
        own = self._tokenizer.get_vocab(with_added_tokens=True)
        theirs = other._tokenizer.get_vocab(with_added_tokens=True)
        if own == theirs:
            return ""
        token, _ = min(own.items() ^ theirs.items(), key=lambda item: (item[1], item[0]))
        mine, its = own.get(token, "no token"), theirs.get(token, "no token")
        return f"{len(own)} and {len(theirs)} tokens, and {token!r} is {mine} in the one and {its} in the other"

    def save(self, path: Path) -> None:
        """Write the `tokenizer.json`."""
        self._tokenizer.save(str(path))

    @classmethod
    def plain(cls) -> ModelTokens:
        """Tokens for a model whose own are unknown: every text can be encoded, and reads back exactly."""
        from dart_agent.models.tiny_model import TinyModelConfig, build_tokenizer

        return cls._of(build_tokenizer(TinyModelConfig()), (), "the plain tokenizer")

    @classmethod
    def _of(cls, tokenizer: Tokenizer, stop_ids: tuple[int, ...], where: str, rows: int = 0) -> ModelTokens:
        tokenizer.encode_special_tokens = True

        def need(token: str) -> int:
            token_id = tokenizer.token_to_id(token)
            if token_id is None:
                raise ConfigurationError(f"{where} has no token {token}: not a tokenizer of the Qwen-VL family")
            return token_id

        special = {i: token.content for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        stop = stop_ids or (need("<|im_end|>"),)
        pad = tokenizer.token_to_id("<|endoftext|>")
        known = set(tokenizer.get_vocab(with_added_tokens=True).values())
        unreachable = tuple(one for one in range(max(rows, max(known) + 1)) if one not in known)
        never = {i for i, token in special.items() if i not in stop and token not in _WRITABLE}
        return cls(
            im_start_id=need("<|im_start|>"),
            im_end_id=need("<|im_end|>"),
            vision_start_id=need("<|vision_start|>"),
            vision_end_id=need("<|vision_end|>"),
            image_pad_id=need("<|image_pad|>"),
            pad_id=need("<|im_end|>") if pad is None else pad,
            stop_ids=stop,
            suppressed_ids=tuple(sorted(never.union(unreachable))),
            highest_id=max(known),
            unreachable_ids=unreachable,
            vocab_size=tokenizer.get_vocab_size(with_added_tokens=True),
            _tokenizer=tokenizer,
        )

    @property
    def actor_id(self) -> int | None:
        """Id of <ACTOR>, which a patch follows instead of a token; None for models without it."""
        return self._tokenizer.token_to_id(POINTER_TOKENS[-1])

    def encode(self, text: str) -> list[int]:
        """Ids of a plain text; special tokens that it spells are read as ordinary characters."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def encode_markup(self, text: str) -> list[int]:
        """Ids of a text of our own, in which special tokens count as such: for prompt templates only."""
        return self.encode_template(text, {}, {})

    def encode_template(self, template: str, texts: Mapping[str, str], ids: Mapping[str, Sequence[int]]) -> list[int]:
        """Ids of a template of our own. Texts that touch are encoded as one, as the model's own processor does.

        Args:
            template: special tokens in it count as such, and `{name}` is filled in; other braces are text.
            texts: plain texts by name: special tokens that they spell are ordinary characters.
            ids: what is encoded already, by name.
        """
        found: list[int] = []
        plain = ""
        for part in _MARKUP.split(template):
            name = part[1:-1] if part.startswith("{") else ""
            special = self._tokenizer.token_to_id(part) if part.startswith("<|") else None
            if name in texts:
                plain += texts[name]
            elif special is None and name not in ids:
                plain += part
            else:
                found += self.encode(plain) if plain else []
                found += [special] if special is not None else ids[name]
                plain = ""
        return found + (self.encode(plain) if plain else [])

    def decode(self, token_ids: Sequence[int], *, special: bool = False) -> str:
        """Text of ids; special tokens are left out, or with `special` spelled out."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=not special)

    def fault_of(self, response_ids: Sequence[int]) -> str:
        """Why ids cannot stand in a history as a response, in one line; "" where they can.

        No response may hold an id that opens a message or stands for an image, or that is no token at all.
        """
        forbidden = set(self.suppressed_ids)
        for index, token_id in enumerate(response_ids):
            known = isinstance(token_id, int) and 0 <= token_id < 2**31
            token = self._tokenizer.id_to_token(token_id) if known else None
            if token_id in forbidden or token is None:
                return (
                    f"the model's response holds {token or 'no token'} (id {token_id}) at place {index} of "
                    f"{len(response_ids)}; no response may. Does the engine honour Sampling.suppressed_ids?"
                )
        return ""

    def mm_token_type_ids(self, token_ids: ArrayLike) -> NDArray[np.int64]:
        """Return transformers' `mm_token_type_ids`: 1 on the pads of images, 0 on text, in the shape of the ids.

        A model that is called without it does not fail: it silently takes positions of text for those of images.
        """
        return (np.asarray(token_ids) == self.image_pad_id).astype(np.int64)

    def response(self, text: str) -> list[int]:
        """Ids of a response as a model would sample it, end token included: what demonstrations train on."""
        return [*self.encode(text), self.im_end_id]


def _head_rows(model_dir: Path) -> int:
    """`vocab_size` of the model's configuration; 0 where it does not say."""
    try:
        config = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
        text = config.get("text_config") or config
        return int(text.get("vocab_size") or 0)
    except FileNotFoundError:
        return 0
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{model_dir}/config.json cannot be read: {error}") from error


def _stop_ids(model_dir: Path) -> tuple[int, ...]:
    """`eos_token_id` of the generation config, maybe empty."""
    path = model_dir / "generation_config.json"
    if not path.is_file():
        return ()
    eos = json.loads(path.read_text()).get("eos_token_id")
    if eos is None:
        return ()
    return (eos,) if isinstance(eos, int) else tuple(eos)
