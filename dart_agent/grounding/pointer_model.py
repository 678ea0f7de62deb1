"""PointerModel: a Qwen-VL backbone with GUI-Actor's head, on the disk too, and the grounder around it.

The question ends in <ACTOR>, whose last hidden state chooses among the patches. The head lies in a folder beside the
weights of an ordinary Hugging Face directory; released GUI-Actor checkpoints have it among them, behind a prefix.

Invariants:
    - Rows are padded on the right behind a causal mask: an answer does not depend on what else is in the batch.
    - What a description spells is plain text: it can hold no token of the pointer.
"""

import asyncio
import json
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from dart_agent.engines.base.engine import RequestRefused
from dart_agent.grounding.attention_regions import candidates_of
from dart_agent.grounding.candidate import Candidate, Grounding, Query
from dart_agent.grounding.pointer_head import PointerHead
from dart_agent.models.families.family_table import family_in
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_gym.core.errors import ConfigurationError
from dart_gym.utils import durable_files

HEAD, RELEASED = "pointer_head", "multi_patch_pointer_head."
POINTER_TOKENS = ("<|recipient|>", "<|diff_marker|>", "<|pointer_start|>", "<|pointer_end|>", "<|pointer_pad|>")
"""What GUI-Actor adds to the vocabulary; the last one is <ACTOR>."""
_QUESTION = (
    "<|im_start|>user\n<|vision_start|>{image}<|vision_end|>{description}<|im_end|>\n"
    "<|im_start|>assistant<|recipient|>os\npyautogui.click(<|pointer_start|><|pointer_pad|>"
)
# What the released models were trained with (microsoft/GUI-Actor, eval/).
_SYSTEMS = {
    "qwen2_vl": "You are a GUI agent. You are given a task and a screenshot of the screen. You need to perform a "
    "series of pyautogui actions to complete the task.",
    "qwen2_5_vl": "You are a GUI agent. Given a screenshot of the current GUI and a human instruction, your task is "
    "to locate the screen element that corresponds to the instruction. You should output a PyAutoGUI action that "
    "performs a click on the correct position. To indicate the click location, we will use some special tokens, which "
    "is used to refer to a visual patch later. For example, you can output: pyautogui.click(<your_special_token_here>)."
}  # fmt: skip


class PointerModel(nn.Module):
    """A backbone and a head, with tokens and image processing of their directory; in evaluation mode."""

    def __init__(
        self, model_dir: str | Path, *, begin: str | None = None, device: str = "cpu", dtype: str = "auto"
    ) -> None:
        """Load; with `begin`, a system message or "", a model without a head gets one. Raises `ConfigurationError`."""
        from transformers import AutoModelForImageTextToText

        super().__init__()
        self.source, kind = Path(model_dir), family_in(model_dir).model_type
        weights, self.system = _read_head(self.source, _SYSTEMS.get(kind, ""))
        if not weights and begin is None:
            raise ConfigurationError(f"{model_dir} has no pointer head: begin one and train it, see docs/grounding.md")
        self.system = self.system if weights else begin or ""
        self.tokens = ModelTokens.load(self.source, POINTER_TOKENS)
        self.pointer_ids = self.tokens.encode_markup("".join(POINTER_TOKENS))
        self.vision = VisionSpec.from_dir(self.source)
        load: Any = AutoModelForImageTextToText.from_pretrained
        self.backbone: Any = load(str(model_dir), dtype=dtype, attn_implementation="sdpa")
        if self.tokens.highest_id >= self.backbone.get_input_embeddings().weight.shape[0]:
            self.backbone.resize_token_embeddings(self.tokens.highest_id + 1)
        width = self.backbone.config.text_config.hidden_size
        self.head = PointerHead(width, len(weights["projection_enc.0.weight"]) if weights else width)
        self.head.load_state_dict(weights or self.head.state_dict())
        self.eval().to(device)

    def forward(self, queries: Sequence[Query]) -> tuple[Tensor, list[tuple[int, int]]]:
        """(B, M) log-probabilities of patches, -inf on padding; (rows, columns) of each. Raises `RequestRefused`."""
        try:
            grids = [self.vision.grid(query.screenshot) for query in queries]
        except ValueError as error:
            raise RequestRefused(f"an image cannot be used: {error}") from None
        merge, device = self.vision.merge_size, self.backbone.device
        sizes = [(rows // merge, columns // merge) for _, rows, columns in grids]
        counts = [rows * columns for rows, columns in sizes]
        rows = [self._question(query.description, count) for query, count in zip(queries, counts, strict=True)]
        ids = pad_sequence([torch.tensor(row) for row in rows], True, padding_value=self.tokens.pad_id)
        lengths = torch.tensor([len(row) for row in rows])
        pixels = np.concatenate([self.vision.patchify(query.screenshot) for query in queries])
        embedded: list[Tensor] = []  # the tower's answer, on its way into the language model
        tower = self.backbone.model.visual
        hook = tower.register_forward_hook(lambda module, arguments, answer: embedded.append(answer.pooler_output))
        try:
            hidden = self.backbone.model(
                input_ids=ids.to(device),
                attention_mask=(torch.arange(ids.shape[1]) < lengths[:, None]).long().to(device),
                # Without it positions of text would silently be taken for those of images.
                mm_token_type_ids=torch.from_numpy(self.tokens.mm_token_type_ids(ids.numpy())).to(device),
                pixel_values=torch.from_numpy(pixels).to(device),
                image_grid_thw=torch.tensor(grids).to(device),
                use_cache=False,
            ).last_hidden_state
        finally:
            hook.remove()
        patches = pad_sequence(list(embedded[0].split(counts)), True)
        real = torch.arange(patches.shape[1]) < torch.tensor(counts)[:, None]
        return self.head(patches, hidden[torch.arange(len(rows)), lengths - 1], real.to(device)), sizes

    def _question(self, description: str, patches: int) -> list[int]:
        template = ("<|im_start|>system\n{system}<|im_end|>\n" if self.system else "") + _QUESTION
        texts = {"description": description, "system": self.system}
        ids = self.tokens.encode_template(template, texts, {"image": [self.tokens.image_pad_id] * patches})
        if len(ids) > (most := self.backbone.config.text_config.max_position_embeddings):
            raise RequestRefused(f"a question of {len(ids)} tokens exceeds the model's {most} positions")
        return ids

    def save(self, out: str | Path) -> Path:
        """Write a directory, whole or not at all. Raises `ConfigurationError`: it is there already."""
        target = Path(out)
        if target.exists():
            raise ConfigurationError(f"{target} exists already: choose another directory")
        durable_files.make_directories(target.parent)
        made = target.with_name(f".{target.name}.partial")
        shutil.rmtree(made, ignore_errors=True)
        (made / HEAD).mkdir(parents=True)
        self.backbone.save_pretrained(made)
        self.tokens.save(made / "tokenizer.json")
        for path in self.source.glob("*[!x].j*"):  # settings and templates; no index of shards
            if not (made / path.name).exists() and not path.name.startswith("dart_"):
                shutil.copyfile(path, made / path.name)
        save_file(self.head.state_dict(), made / HEAD / "model.safetensors")
        (made / HEAD / "config.json").write_text(json.dumps({"system": self.system}) + "\n")
        durable_files.publish_directory(made, target)
        return target


def _read_head(model_dir: Path, released: str) -> tuple[dict[str, Tensor], str]:
    """A head's tensors in float32 and its system message, ours or a released one's; no tensors where there is none."""
    folder, prefix, system = model_dir, RELEASED, released
    if (model_dir / HEAD).is_dir():
        folder, prefix = model_dir / HEAD, ""
        system = json.loads((folder / "config.json").read_text())["system"]
    weights: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(str(path), "pt") as file:
            names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118  # no mapping
            weights |= {name.removeprefix(prefix): file.get_tensor(name).float() for name in names}
    return weights, system


class PointerGrounder:
    """A `Grounder` of a pointer model; queries run one batch after the other, off the event loop."""

    def __init__(self, model: PointerModel, *, max_batch: int = 16) -> None:
        self._model, self._max_batch, self._turn = model, max_batch, threading.Lock()

    async def locate(self, description: str, screenshot: NDArray[np.uint8], k: int = 1) -> list[Candidate]:
        """One query."""
        return list((await self.locate_batch([Query(description, screenshot)], k))[0].candidates)

    async def locate_batch(self, queries: Sequence[Query], k: int = 1) -> list[Grounding]:
        """Answer in batches of `max_batch`."""
        return await asyncio.to_thread(self._answer, queries, k)

    def _answer(self, queries: Sequence[Query], k: int) -> list[Grounding]:
        found = []
        for start in range(0, len(queries), self._max_batch):
            batch = queries[start : start + self._max_batch]
            with self._turn, torch.inference_mode():
                logprobs, sizes = self._model(batch)
            for query, row, (rows, columns) in zip(batch, logprobs.exp().cpu().numpy(), sizes, strict=True):
                attention = row[: rows * columns].reshape(rows, columns)
                height, width = query.screenshot.shape[:2]
                found.append(Grounding(tuple(candidates_of(attention, (width, height), k)), attention))
        return found
