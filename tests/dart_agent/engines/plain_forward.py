"""What engines are compared with: prompts of several images, and the model's own forward pass over them."""

import numpy as np
import torch

from dart_agent.engines.base.engine import Prompt, Sampling
from dart_agent.engines.embedded.qwen_runner import QwenRunner


def screen(seed: int, height: int = 112, width: int = 84) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def make_prompt(tokens, vision, images: list[np.ndarray], text: str = "Click on it") -> Prompt:
    ids = [tokens.im_start_id, *tokens.encode(f"user\n{text}")]
    for image in images:
        pads = [tokens.image_pad_id] * vision.num_tokens(image)
        ids += [tokens.vision_start_id, *pads, tokens.vision_end_id, *tokens.encode("then")]
    ids += [tokens.im_end_id, *tokens.encode("\n"), tokens.im_start_id, *tokens.encode("assistant\n")]
    return Prompt(tuple(ids), tuple(images))


def settings(tokens, **changes) -> Sampling:
    return Sampling(**{"max_tokens": 9, "stop_ids": tokens.stop_ids, "suppressed_ids": tokens.suppressed_ids} | changes)


def plain_logprobs(
    runner: QwenRunner, prompt: Prompt, response: tuple[int, ...], suppressed, temperature: float = 1.0
) -> torch.Tensor:
    """Log-probabilities of a response by the model's own forward pass."""
    logprobs = plain_distributions(runner, prompt, response, suppressed, temperature)
    return logprobs.gather(1, torch.tensor(response)[:, None])[:, 0]


def plain_distributions(
    runner: QwenRunner, prompt: Prompt, response: tuple[int, ...], suppressed, temperature: float = 1.0
) -> torch.Tensor:
    """(tokens, vocabulary) log-probabilities from which each token of a response was drawn."""
    model, vision = runner.model, runner.vision
    ids = torch.tensor([[*prompt.token_ids, *response, 0, 0, 0]])  # padded on the right, as in training
    extra = {}
    if prompt.images:
        patches = np.concatenate([vision.patchify(image) for image in prompt.images])
        extra["pixel_values"] = torch.from_numpy(patches)
        extra["image_grid_thw"] = torch.tensor([vision.grid(image) for image in prompt.images])
        extra["mm_token_type_ids"] = (ids == model.config.image_token_id).int()
    mask = torch.ones_like(ids)
    mask[:, -3:] = 0
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask, **extra).logits[0].float() / temperature
    logits[:, list(suppressed)] = -torch.inf
    start = len(prompt.token_ids)
    return logits[start - 1 : start - 1 + len(response)].log_softmax(-1)
