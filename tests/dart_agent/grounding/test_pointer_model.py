"""GUI-Actor's head on tiny backbones of three families: what transformers computes, batches, files, other names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dart_agent.engines.base.engine import RequestRefused
from dart_agent.grounding.candidate import Query
from dart_agent.grounding.pointer_model import PointerGrounder, PointerModel
from dart_agent.grounding.pointer_prompt import SETTINGS
from dart_agent.models.model_directory import DIGESTS, FINGERPRINT, TRAINER_STATE
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.pointer_head import ATTRIBUTE, FOLDER, attach_head
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
from dart_gym.core.errors import ConfigurationError

pytestmark = pytest.mark.train
FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")


@pytest.fixture(scope="module", params=FAMILIES)
def plain_dir(request, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = TinyModelConfig(family=request.param, vision_layers=2)
    return build_tiny_model(tmp_path_factory.mktemp(request.param), seed=2, config=config)


@pytest.fixture(scope="module")
def model(plain_dir: Path) -> PointerModel:
    return PointerModel(plain_dir, begin="Find it.")


def screens(*sizes: tuple[int, int]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (height, width, 3), np.uint8) for height, width in sizes]


@torch.no_grad()
def test_it_is_what_transformers_own_forward_pass_computes(model: PointerModel):
    """Backbone called whole, hidden states of <ACTOR> and input embeddings of the image, the head's formulas."""
    (screen,) = screens((128, 160))
    seen: dict[str, torch.Tensor] = {}
    whole = model.backbone.model
    hook = whole.language_model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.update(embeddings=kwargs["inputs_embeds"]), with_kwargs=True
    )
    ids = torch.tensor([model.asked.question("the OK button", screen)])
    hidden = whole(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        mm_token_type_ids=torch.from_numpy(model.tokens.mm_token_type_ids(ids.numpy())),
        pixel_values=torch.from_numpy(model.vision.patchify(screen)),
        image_grid_thw=torch.tensor([model.vision.grid(screen)]),
    ).last_hidden_state
    hook.remove()
    assert ids[0, -1] == model.pointer_ids[-1]
    patches = seen["embeddings"][ids == model.tokens.image_pad_id]
    head = model.head
    mixed, _ = head.self_attention(patches, patches, patches)
    keys = head.projection_enc(head.layer_norm(patches + mixed))
    scores = keys @ head.projection_dec(hidden[0, -1]) / patches.shape[-1] ** 0.5
    logprobs, [(rows, columns)] = model([Query("the OK button", screen)])
    assert rows * columns == len(patches) == logprobs.shape[1]
    torch.testing.assert_close(logprobs[0], scores.log_softmax(-1), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_an_answer_does_not_depend_on_the_batch(model: PointerModel):
    small, large = screens((64, 64), (160, 192))
    alone = model([Query("x", small)])[0][0]
    queries = [Query("something with a longer name", large), Query("x", small)]
    logprobs, [_, (rows, columns)] = model(queries)
    torch.testing.assert_close(logprobs[1, : rows * columns], alone, atol=1e-5, rtol=1e-4)
    assert torch.isneginf(logprobs[1, rows * columns :]).all()


@torch.no_grad()
def test_a_screen_that_is_asked_about_twice_passes_through_the_tower_once(model: PointerModel):
    one, other = screens((64, 96), (96, 64))
    queries = [Query("x", one), Query("y", other), Query("z", one.copy()), Query("x", other)]
    seen: list[int] = []
    hook = model.backbone.model.visual.register_forward_pre_hook(lambda module, given: seen.append(len(given[0])))
    together, _ = model(queries)
    hook.remove()
    assert seen == [sum(len(model.vision.patchify(shot)) for shot in (one, other))]
    for row, query in zip(together, queries, strict=True):
        torch.testing.assert_close(row, model([query])[0][0], atol=1e-5, rtol=1e-4)


async def test_a_grounder_answers_in_pixels_of_the_real_screen(model: PointerModel):
    grounder = PointerGrounder(model, max_batch=2)
    shots = screens((128, 160), (100, 90), (64, 64))
    found = await grounder.locate_batch([Query("the OK button", shot) for shot in shots], k=3)
    for shot, answer in zip(shots, found, strict=True):
        assert answer.attention is not None and answer.attention.sum() == pytest.approx(1.0, abs=1e-5)
        assert 1 <= len(answer.candidates) <= 3
        scores = [candidate.score for candidate in answer.candidates]
        assert scores == sorted(scores, reverse=True)
        for place in answer.candidates:
            assert 0 <= place.x < shot.shape[1] and 0 <= place.y < shot.shape[0]
            assert place.region is not None and place.region.area > 0
    first = (await grounder.locate("the OK button", shots[0]))[0]
    assert (first.x, first.y) == (found[0].candidates[0].x, found[0].candidates[0].y)


def test_what_it_cannot_see_is_refused(model: PointerModel):
    with pytest.raises(RequestRefused, match="aspect ratio"):
        model([Query("x", np.zeros((2, 900, 3), np.uint8))])
    with pytest.raises(RequestRefused, match="positions"):
        model([Query("ü" * 5000, np.zeros((64, 64, 3), np.uint8))])


def test_a_description_can_hold_no_token_of_the_pointer(model: PointerModel):
    (screen,) = screens((64, 64))
    ids = model.asked.question("<|pointer_pad|> {image} <|im_end|>", screen)
    assert ids.count(model.pointer_ids[-1]) == 1
    assert ids.count(model.tokens.image_pad_id) == model.vision.num_tokens(screen)


def test_its_directory_is_an_ordinary_one(model: PointerModel, tmp_path: Path):
    from transformers import AutoModelForImageTextToText, AutoTokenizer

    saved = model.save(tmp_path / "saved")
    backbone = AutoModelForImageTextToText.from_pretrained(saved)
    assert backbone.get_input_embeddings().weight.shape[0] >= ModelTokens.load(saved).highest_id + 1
    loaded, own = backbone.state_dict(), model.backbone.state_dict()
    assert loaded.keys() == own.keys() and all(torch.equal(loaded[name], own[name]) for name in own)
    head = attach_head(backbone, saved)
    assert head is not None and head.actor_id == ModelTokens.load(saved).actor_id == model.pointer_ids[-1]
    assert AutoTokenizer.from_pretrained(saved).convert_tokens_to_ids("<|pointer_pad|>") == (model.pointer_ids[-1])
    again = PointerModel(saved)
    assert again.asked.system == model.asked.system
    query = Query("x", screens((64, 96))[0])
    with torch.no_grad():
        torch.testing.assert_close(again([query])[0], model([query])[0])
    with pytest.raises(ConfigurationError, match="exists already"):
        model.save(saved)


def test_what_a_trainer_wrote_of_other_weights_stays_behind(model: PointerModel, tmp_path: Path):
    version = tmp_path / "version"
    shutil.copytree(model.source, version)
    for name in (DIGESTS, FINGERPRINT, TRAINER_STATE):
        (version / name).write_text("{}")
    saved = PointerModel(version, begin="").save(tmp_path / "saved")
    kept = {path.name for path in saved.iterdir()}
    assert kept.isdisjoint({DIGESTS, FINGERPRINT, TRAINER_STATE}) and "preprocessor_config.json" in kept


def test_released_names_load(model: PointerModel, tmp_path: Path):
    """A GUI-Actor checkpoint: the head among the backbone's tensors, under Qwen's published names."""
    saved = model.save(tmp_path / "released")
    weights = load_file(saved / "model.safetensors")
    head = {f"{ATTRIBUTE}.{name}": value.to(torch.bfloat16) for name, value in model.head.state_dict().items()}
    save_file({**weights, **head}, saved / "model.safetensors", metadata={"format": "pt"})
    shutil.rmtree(saved / FOLDER)
    (saved / SETTINGS).unlink()
    released = PointerModel(saved)
    asked = (
        "You are a GUI agent." if json.loads((saved / "config.json").read_text())["model_type"] != "qwen3_vl" else ""
    )
    assert released.asked.system.startswith(asked)
    for name, value in model.head.state_dict().items():
        torch.testing.assert_close(released.head.state_dict()[name], value, atol=1e-2, rtol=1e-2)


def test_a_directory_without_a_head_is_refused(plain_dir: Path):
    with pytest.raises(ConfigurationError, match="no pointer head"):
        PointerModel(plain_dir)
