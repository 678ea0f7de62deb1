"""PointerModel: a Qwen-VL backbone with GUI-Actor's head, on the disk too, and the grounder around it.

The question ends in <ACTOR>, whose last hidden state chooses among the patches. The head lies in a folder beside the
weights of an ordinary Hugging Face directory; released GUI-Actor checkpoints have it among them, behind a prefix.

Invariant: rows are padded on the right behind a causal mask: an answer does not depend on what else is in the batch.
"""

import asyncio
import contextlib
import json
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from dart_agent.engines.base.engine import RequestRefused
from dart_agent.grounding.attention_regions import THRESHOLD, candidates_of
from dart_agent.grounding.candidate import Candidate, Grounding, Query
from dart_agent.grounding.pointer_prompt import SETTINGS, PointerPrompt
from dart_agent.models.expert_weights import save_model
from dart_agent.models.model_directory import companion_files
from dart_agent.models.model_tokens import POINTER_TOKENS
from dart_agent.models.pointer_head import FOLDER, PointerHead, head_weights
from dart_gym.core.errors import ConfigurationError
from dart_gym.core.project_pages import page
from dart_gym.utils import durable_files


class PointerModel(nn.Module):
    """A backbone and a head, with tokens and image processing of their directory; in evaluation mode."""

    def __init__(
        self, model_dir: str | Path, *, begin: str | None = None, device: str = "cpu", dtype: str = "auto"
    ) -> None:
        """Load; with `begin`, a system message or "", a model without a head gets one. Raises `ConfigurationError`."""
        from transformers import AutoModelForImageTextToText

        super().__init__()
        self.source, weights = Path(model_dir), head_weights(model_dir)
        if not weights and begin is None:
            raise ConfigurationError(
                f"{model_dir} has no pointer head: begin one and train it, see {page('guides/grounding')}"
            )
        self.asked = PointerPrompt.load(model_dir, None if weights else begin or "")
        self.tokens, self.vision = self.asked.tokens, self.asked.vision
        self.pointer_ids = self.tokens.encode_markup("".join(POINTER_TOKENS))
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
        rows = [self.asked.question(query.description, query.screenshot) for query in queries]
        lengths = torch.tensor([len(row) for row in rows])
        if (longest := int(lengths.max())) > (most := self.backbone.config.text_config.max_position_embeddings):
            raise RequestRefused(f"a question of {longest} tokens exceeds the model's {most} positions")
        ids = pad_sequence([torch.tensor(row) for row in rows], True, padding_value=self.tokens.pad_id)
        device, sizes = self.backbone.device, [self.asked.grid(query.screenshot) for query in queries]
        shots = [(query.screenshot.shape, query.screenshot.tobytes()) for query in queries]
        rows_of = [shots.index(shot) for shot in shots]  # of the first query on the same screen
        pixels = np.concatenate([self.vision.patchify(queries[row].screenshot) for row in sorted({*rows_of})])
        counts = [rows * columns for rows, columns in sizes]
        with _each_once(self.backbone.model.visual, rows_of, counts) as embedded:
            hidden = self.backbone.model(
                input_ids=ids.to(device),
                attention_mask=(torch.arange(ids.shape[1]) < lengths[:, None]).long().to(device),
                # Without it positions of text would silently be taken for those of images.
                mm_token_type_ids=torch.from_numpy(self.tokens.mm_token_type_ids(ids.numpy())).to(device),
                pixel_values=torch.from_numpy(pixels).to(device),
                image_grid_thw=torch.tensor([self.vision.grid(query.screenshot) for query in queries]).to(device),
                use_cache=False,
            ).last_hidden_state
        patches = embedded[0].split(counts)
        return self.head.choices(patches, hidden[torch.arange(len(rows)), lengths - 1]), sizes

    def save(self, out: str | Path) -> Path:
        """Write a directory atomically.

        Raises:
            ConfigurationError: if the directory exists.
        """
        target = Path(out)
        if target.exists():
            raise ConfigurationError(f"{target} exists already: choose another directory")
        durable_files.make_directories(target.parent)
        made = target.with_name(f".{target.name}.partial")
        shutil.rmtree(made, ignore_errors=True)
        (made / FOLDER).mkdir(parents=True)
        save_model(self.backbone, made)
        self.tokens.save(made / "tokenizer.json")
        for path in companion_files(self.source):
            if not (made / path.name).exists():
                shutil.copyfile(path, made / path.name)
        save_file(self.head.state_dict(), made / FOLDER / "model.safetensors")
        (made / SETTINGS).write_text(json.dumps({"system": self.asked.system}) + "\n")
        durable_files.publish_directory(made, target)
        return target


@contextlib.contextmanager
def _each_once(tower: nn.Module, rows_of: Sequence[int], counts: Sequence[int]) -> Iterator[list[Tensor]]:
    """Let a tower see each screen once, and the language model all: by row, the first of its screen, and its patches.

    The list receives the tower's output, (patches of all rows, width), on its way into the language model.
    """
    once, embedded = sorted({*rows_of}), list[Tensor]()

    def fewer(module: nn.Module, arguments: Any, named: dict[str, Any]) -> Any:
        return arguments, named | {"grid_thw": named["grid_thw"][once]}

    def all_of(features: Tensor) -> Tensor:
        parts = dict(zip(once, features.split([counts[row] for row in once]), strict=True))
        return torch.cat([parts[row] for row in rows_of])

    def shown(module: nn.Module, arguments: Any, answer: Any) -> None:
        answer.pooler_output = all_of(answer.pooler_output)
        if deeper := getattr(answer, "deepstack_features", None):
            answer.deepstack_features = [all_of(features) for features in deeper]
        embedded.append(answer.pooler_output)

    hooks = tower.register_forward_pre_hook(fewer, with_kwargs=True), tower.register_forward_hook(shown)
    try:
        yield embedded
    finally:
        for hook in hooks:
            hook.remove()


class PointerGrounder:
    """A `Grounder` of a pointer model; queries run one batch after the other, off the event loop."""

    def __init__(self, model: PointerModel, *, max_batch: int = 16, threshold: float = THRESHOLD) -> None:
        self._model = model
        self._max_batch = max_batch
        self._turn = threading.Lock()
        self._threshold = threshold

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
                found.append(Grounding(tuple(candidates_of(attention, (width, height), k, self._threshold)), attention))
        return found
