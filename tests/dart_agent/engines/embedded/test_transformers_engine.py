"""The embedded engine computes what a plain forward pass computes, whatever shares its batches."""

import asyncio
import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from dart_agent.engines.base.engine import EngineError, Prompt
from dart_agent.engines.embedded.qwen_runner import QwenRunner, rope_positions
from dart_agent.engines.embedded.transformers_engine import TransformersEngine
from dart_agent.models.families.family_table import FAMILIES
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
from dart_gym.core.errors import ConfigurationError
from tests.dart_agent.engines.plain_forward import make_prompt, plain_distributions, plain_logprobs, screen, settings

pytestmark = pytest.mark.train


def various(tokens, vision) -> list[Prompt]:
    """Prompts of different lengths; no image, one, two of the same or of different sizes."""
    images = [[screen(0)], [screen(1)], [], [screen(0), screen(2)], [screen(0)], [screen(3, 56, 140), screen(1)]]
    return [make_prompt(tokens, vision, some, "go " * (3 * i)) for i, some in enumerate(images)]


@pytest.fixture(scope="module")
def runner(tiny_dir, vision) -> QwenRunner:
    torch.set_num_threads(1)
    return QwenRunner.load(tiny_dir, vision)


def test_equals_a_plain_forward_pass(runner, tokens, vision):
    prompts = various(tokens, vision)
    samplings = [settings(tokens, max_tokens=4 + i, seed=i) for i in range(len(prompts))]
    for prompt, row in zip(prompts, runner.sample(prompts, samplings), strict=True):
        expected = plain_logprobs(runner, prompt, row.response_ids, tokens.suppressed_ids)
        assert torch.allclose(torch.tensor(row.logprobs), expected, atol=1e-5)
        whole = plain_distributions(runner, prompt, row.response_ids, tokens.suppressed_ids)
        entropies = -(whole.exp() * whole.clamp(min=-1e4)).sum(-1)
        assert row.entropy == pytest.approx(float(entropies.mean()), abs=1e-5)
        assert not set(row.response_ids) & set(tokens.suppressed_ids)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_given_responses_get_the_log_probabilities_of_a_plain_forward_pass(runner, tokens, vision, temperature):
    """Beside sampled ones, and longer than these; what is sampled is the same as without them."""
    prompts = various(tokens, vision)
    samplings = [settings(tokens, seed=i, temperature=temperature) for i in range(len(prompts))]
    alone = runner.sample(prompts, samplings)
    given = [tuple(tokens.response("Action: click(start_box='(9,9)') and more" * (1 + i % 2))) for i in range(6)]
    asked = [dataclasses.replace(one, given_ids=ids) for one, ids in zip(samplings, given, strict=True)]
    rows = runner.sample([*prompts, *prompts], [*asked, *samplings])
    assert [row.response_ids for row in rows[6:]] == [row.response_ids for row in alone]
    for prompt, ids, row in zip(prompts, given, rows[:6], strict=True):
        expected = plain_logprobs(runner, prompt, ids, tokens.suppressed_ids, temperature)
        assert row.response_ids == ids and row.finish_reason == "stop"
        assert torch.allclose(torch.tensor(row.logprobs), expected, atol=1e-5)


def test_windowed_vision_towers_work_too(tmp_path, tokens, vision):
    build_tiny_model(tmp_path, seed=2)
    config = json.loads((tmp_path / "config.json").read_text())
    config["vision_config"] |= {"fullatt_block_indexes": [1], "window_size": 56}
    (tmp_path / "config.json").write_text(json.dumps(config))
    windowed = QwenRunner.load(tmp_path, vision)
    prompt = make_prompt(tokens, vision, [screen(1), screen(2)])
    [row] = windowed.sample([prompt], [settings(tokens, seed=1)])
    expected = plain_logprobs(windowed, prompt, row.response_ids, tokens.suppressed_ids)
    assert torch.allclose(torch.tensor(row.logprobs), expected, atol=1e-5)


def test_results_do_not_depend_on_the_batch(runner, tokens, vision):
    prompts = various(tokens, vision)
    samplings = [settings(tokens, seed=10 + i) for i in range(len(prompts))]
    together = runner.sample(prompts, samplings)
    for prompt, sampling, row in zip(prompts, samplings, together, strict=True):
        [alone] = runner.sample([prompt], [sampling])
        assert alone.response_ids == row.response_ids
        assert np.allclose(alone.logprobs, row.logprobs, atol=1e-5)
    assert [row.response_ids for row in runner.sample(prompts[::-1], samplings[::-1])][::-1] == [
        row.response_ids for row in together
    ]


def test_seeds_and_temperature(runner, tokens, vision):
    prompt = make_prompt(tokens, vision, [screen(0)])
    rows = runner.sample([prompt] * 6, [settings(tokens, seed=seed) for seed in (1, 1, 2, 3, None, None)])
    assert rows[0] == rows[1]
    assert len({row.response_ids for row in rows}) == 5
    greedy = runner.sample([prompt] * 2, [settings(tokens, temperature=0.0, seed=seed) for seed in (1, 2)])
    assert greedy[0].response_ids == greedy[1].response_ids
    expected = plain_logprobs(runner, prompt, greedy[0].response_ids, tokens.suppressed_ids)
    assert torch.allclose(torch.tensor(greedy[0].logprobs), expected, atol=1e-5), "those at temperature 1"


def test_samples_follow_the_distribution(runner, tokens, vision):
    prompt = make_prompt(tokens, vision, [screen(0)])
    banned = tuple(i for i in range(tokens.vocab_size) if i not in range(20, 24))
    rows = runner.sample(
        [prompt] * 2000, [settings(tokens, max_tokens=1, seed=s, suppressed_ids=banned) for s in range(2000)]
    )
    drawn = [row.response_ids[0] for row in rows]
    for token in range(20, 24):
        probability = next(np.exp(row.logprobs[0]) for row in rows if row.response_ids[0] == token)
        assert abs(drawn.count(token) / 2000 - probability) < 4 * np.sqrt(probability * (1 - probability) / 2000)


def test_rows_of_the_head_that_stand_for_no_token_are_never_sampled(runner, tiny_dir, tokens, vision, tmp_path):
    from transformers import AutoModelForImageTextToText

    shutil.copytree(tiny_dir, tmp_path / "padded")
    model = AutoModelForImageTextToText.from_pretrained(str(tiny_dir))
    known = model.config.text_config.vocab_size
    model.resize_token_embeddings(known + 64, mean_resizing=False)
    with torch.no_grad():  # they would win each draw
        model.get_output_embeddings().weight[known:] = 100 * model.get_output_embeddings().weight[:known].mean(0)
        model.get_output_embeddings().weight[known + 1 :: 2] *= -1
    model.save_pretrained(tmp_path / "padded")
    assert ModelTokens.load(tmp_path / "padded").unreachable_ids[-64:] == tuple(range(known, known + 64))
    prompts = various(tokens, vision)
    unsuppressed = [settings(tokens, seed=seed, suppressed_ids=()) for seed in range(len(prompts))]
    padded = QwenRunner.load(tmp_path / "padded", vision).sample(prompts, unsuppressed)
    for found, plain in zip(padded, runner.sample(prompts, unsuppressed), strict=True):
        assert found.response_ids == plain.response_ids
        assert np.allclose(found.logprobs, plain.logprobs, atol=1e-5)


def test_stopping(runner, tokens, vision):
    prompt = make_prompt(tokens, vision, [screen(0)])
    everything = tuple(range(tokens.vocab_size))
    only_end = tuple(set(everything) - {tokens.im_end_id})
    [stopped, cut] = runner.sample(
        [prompt] * 2,
        [settings(tokens, suppressed_ids=only_end, seed=0), settings(tokens, max_tokens=3, stop_ids=(), seed=0)],
    )
    assert (stopped.response_ids, stopped.finish_reason) == ((tokens.im_end_id,), "stop")
    assert stopped.logprobs == (0.0,)
    assert (len(cut.response_ids), cut.finish_reason) == (3, "length")


def test_rope_positions_equal_the_models(runner, tokens, vision):
    for prompt in various(tokens, vision):
        grids = [vision.grid(image) for image in prompt.images]
        ids = torch.tensor([prompt.token_ids])
        expected, _ = runner.model.model.get_rope_index(
            ids, (ids == tokens.image_pad_id).int(), torch.tensor(grids) if grids else None
        )
        ours = rope_positions(np.asarray(prompt.token_ids), grids, tokens.image_pad_id, vision.merge_size)
        assert np.array_equal(ours, expected[:, 0].numpy())


def test_equal_images_go_through_the_tower_once(runner, tokens, vision, monkeypatch):
    seen = []
    embed = runner.tower.embed
    monkeypatch.setattr(runner.tower, "embed", lambda patches, grids: seen.append(len(grids)) or embed(patches, grids))
    prompts = [make_prompt(tokens, vision, [screen(77), screen(78)]) for _ in range(4)]
    for _ in range(2):
        runner.sample(prompts, [settings(tokens, seed=1)] * 4)
    assert seen == [2]


# The engine around it


@pytest.fixture
async def engine(tiny_dir):
    engine = TransformersEngine(tiny_dir, name="e0", threads=1, max_batch=4)
    yield engine
    await engine.close()


async def test_concurrent_requests(engine, runner, tokens, vision):
    prompts = various(tokens, vision)
    samplings = [settings(tokens, seed=i) for i in range(len(prompts))]
    results = await asyncio.gather(*(engine.generate(*pair) for pair in zip(prompts, samplings, strict=True)))
    for result, row in zip(results, runner.sample(prompts, samplings), strict=True):
        assert result.response_ids == row.response_ids
        assert result.text == tokens.decode(row.response_ids)
        assert (result.version, result.engine, result.finish_reason) == ((0, 0), "e0", row.finish_reason)
        assert result.seconds[1] > 0
    info = await engine.info()
    assert (info.requests, info.in_flight, info.version) == (len(prompts), 0, 0)
    assert info.tokens == sum(len(result.response_ids) for result in results)
    assert 0 < info.busy_s < 30


async def test_weight_update(engine, tiny_dir, tokens, vision, tmp_path):
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(tiny_dir)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    new = shutil.copytree(tiny_dir, tmp_path / "v7")
    model.save_pretrained(new)
    prompt, sampling = make_prompt(tokens, vision, [screen(0)]), settings(tokens, seed=5)
    before = await engine.generate(prompt, sampling)
    await engine.update_weights(str(new), 7)
    after = await engine.generate(prompt, sampling)
    assert (before.version, after.version) == ((0, 0), (7, 7))
    [fresh] = QwenRunner.load(new, vision).sample([prompt], [sampling])
    assert after.response_ids == fresh.response_ids
    assert np.allclose(after.logprobs, fresh.logprobs, atol=1e-5)
    assert before.logprobs != after.logprobs
    assert (await engine.info()).model == str(new)


async def test_a_bad_checkpoint_changes_nothing(engine, tokens, vision, tmp_path):
    prompt, sampling = make_prompt(tokens, vision, [screen(0)]), settings(tokens, seed=5)
    before = await engine.generate(prompt, sampling)
    build_tiny_model(tmp_path / "other", config=TinyModelConfig(layers=2))
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "model.safetensors").write_bytes(b"torn")
    for wrong, says in (("other", "unknown"), ("torn", "cannot load"), ("missing", "no \\*.safetensors")):
        with pytest.raises(EngineError, match=says):
            await engine.update_weights(str(tmp_path / wrong), 9)
    after = await engine.generate(prompt, sampling)
    assert (after.response_ids, after.logprobs, after.version) == (before.response_ids, before.logprobs, (0, 0))


async def test_updates_fall_between_batches(engine, tiny_dir, tokens, vision):
    prompt = make_prompt(tokens, vision, [screen(0)])
    tasks = [asyncio.create_task(engine.generate(prompt, settings(tokens, seed=i))) for i in range(6)]
    await asyncio.sleep(0)
    update = asyncio.create_task(engine.update_weights(str(tiny_dir), 1))
    await asyncio.sleep(0)
    tasks += [asyncio.create_task(engine.generate(prompt, settings(tokens, seed=i))) for i in range(6)]
    versions = [result.version for result in await asyncio.gather(*tasks)]
    await update
    assert versions == [(0, 0)] * 6 + [(1, 1)] * 6


async def test_bad_requests(engine, tokens, vision):
    good, sampling = make_prompt(tokens, vision, [screen(0)]), settings(tokens)
    for prompt, wrong, says in (
        (Prompt(good.token_ids), sampling, "image pads"),
        (Prompt(()), sampling, "needs a prompt"),
        (Prompt((10**6,)), sampling, "outside"),
        (Prompt((1,)), settings(tokens, stop_ids=(-1,)), "outside"),
        (Prompt((5,) * 5000), sampling, "exceed"),
        (good, settings(tokens, max_tokens=0), "max_tokens"),
        (good, settings(tokens, temperature=-1.0), "temperature"),
        (Prompt(good.token_ids, (np.zeros((1, 500, 3), np.uint8),)), sampling, "aspect ratio"),
    ):
        with pytest.raises(EngineError, match=says):
            await engine.generate(prompt, wrong)
    assert (await engine.generate(good, sampling)).response_ids


async def test_cancelled_requests_and_close(tiny_dir, tokens, vision):
    engine = TransformersEngine(tiny_dir, threads=1)
    prompt = make_prompt(tokens, vision, [screen(0)])
    tasks = [asyncio.create_task(engine.generate(prompt, settings(tokens))) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(done[1], asyncio.CancelledError)
    assert done[0].response_ids and done[2].response_ids
    await engine.close()
    await engine.close()
    with pytest.raises(EngineError, match="closed"):
        await engine.generate(prompt, settings(tokens))


def test_other_models_are_refused(tiny_dir, tmp_path, vision):
    other = shutil.copytree(tiny_dir, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"model_type": "llava"}))
    with pytest.raises(ConfigurationError, match="llava model.*Known are qwen2_vl, qwen2_5_vl, qwen3_vl"):
        QwenRunner.load(other, vision)
    (other / "config.json").write_text("{")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        QwenRunner.load(other, vision)
    (other / "config.json").write_text(
        json.dumps(config | {"text_config": config["text_config"] | {"use_sliding_window": True, "sliding_window": 64}})
    )
    with pytest.raises(ConfigurationError, match="sliding-window"):
        QwenRunner.load(other, vision)
    with pytest.raises(ConfigurationError, match="has patch_size 16, config.json has patch_size 14"):
        QwenRunner.load(tiny_dir, dataclasses.replace(vision, patch_size=16))


# Every family


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    """(runner, tokens, vision) of a tiny model of each family, with Qwen's two frames in a patch."""
    directory = tmp_path_factory.mktemp(request.param)
    small = TinyModelConfig(family=request.param, layers=2, vision_layers=2, temporal_patch_size=2, matrix_std=0.15)
    build_tiny_model(directory, seed=3, config=small)
    torch.set_num_threads(1)
    vision = VisionSpec.from_dir(directory)
    return QwenRunner.load(directory, vision), ModelTokens.load(directory), vision


SIZES = ((112, 84), (56, 140), (64, 64), (168, 96), (90, 130))


def test_families_with_one_to_five_images_alone_and_together(family):
    """Log-probabilities are those of a plain forward pass, whatever shares the batch; positions are the model's."""
    runner, tokens, vision = family
    frames = [vision.resize(screen(i, *size)) for i, size in enumerate(SIZES)]
    prompts = [make_prompt(tokens, vision, frames[:count], "go " * (7 * (count % 3))) for count in range(1, 6)]
    prompts.append(make_prompt(tokens, vision, [frames[0]] * 3))
    samplings = [settings(tokens, max_tokens=6, seed=i, temperature=0.5 + 0.25 * i) for i in range(len(prompts))]
    together = runner.sample(prompts, samplings)
    for prompt, sampling, row in zip(prompts, samplings, together, strict=True):
        runner.check(prompt, sampling)
        expected = plain_logprobs(runner, prompt, row.response_ids, tokens.suppressed_ids, sampling.temperature)
        assert np.abs(np.asarray(row.logprobs) - expected.numpy()).max() < 1e-5
        [alone] = runner.sample([prompt], [sampling])
        assert alone.response_ids == row.response_ids
        assert np.abs(np.asarray(alone.logprobs) - expected.numpy()).max() < 1e-5
        ids = torch.tensor([prompt.token_ids])
        types = torch.from_numpy(tokens.mm_token_type_ids(ids.numpy()))
        grids = [vision.grid(image) for image in prompt.images]
        positions, _ = runner.model.model.get_rope_index(ids, types, torch.tensor(grids))
        ours = rope_positions(ids[0].numpy(), grids, tokens.image_pad_id, vision.merge_size)
        assert np.array_equal(ours, positions[:, 0].numpy())


def test_equal_prompts_run_once_and_go_on_alone(family, monkeypatch):
    """Equal ids with another picture are another prompt."""
    runner, tokens, vision = family
    frames = [vision.resize(screen(i)) for i in range(2)]
    first, other, long = (make_prompt(tokens, vision, [frame], text) for frame, text in
                          ((frames[0], "go"), (frames[1], "go"), (frames[0], "go on " * 9)))  # fmt: skip
    prompts = [first, other, first, long, first]
    samplings = [settings(tokens, seed=i, max_tokens=5) for i in range(5)]
    prefill, ran = runner.decoder.prefill, []
    monkeypatch.setattr(runner.decoder, "prefill", lambda rows, *rest: ran.append(len(rows)) or prefill(rows, *rest))
    rows = runner.sample(prompts, samplings)
    assert ran == [3] and len({row.response_ids for row in (rows[0], rows[2], rows[4])}) == 3
    for prompt, row in zip(prompts, rows, strict=True):
        expected = plain_logprobs(runner, prompt, row.response_ids, tokens.suppressed_ids)
        assert np.abs(np.asarray(row.logprobs) - expected.numpy()).max() < 1e-5


def test_a_prompt_that_goes_on_reads_only_what_is_new(family, monkeypatch, tmp_path):
    """Beside others, of unlike lengths before and after; other pictures and other weights are read anew."""
    runner, tokens, vision = family
    runner.prefixes.clear()
    frames = [vision.resize(screen(i, *size)) for i, size in enumerate(SIZES)]
    prefill, read = runner.decoder.prefill, []
    monkeypatch.setattr(
        runner.decoder, "prefill", lambda rows, *rest: read.append(tuple(rows.shape[:2])) or prefill(rows, *rest)
    )

    def sample(*prompts):
        samplings = [settings(tokens, seed=i, max_tokens=4 + i) for i in range(len(prompts))]
        rows = runner.sample(prompts, samplings)
        for prompt, row in zip(prompts, rows, strict=True):
            expected = plain_logprobs(runner, prompt, row.response_ids, tokens.suppressed_ids)
            assert np.abs(np.asarray(row.logprobs) - expected.numpy()).max() < 1e-5
        return rows

    def following(prompt, row, image):
        more = make_prompt(tokens, vision, [image] if image is not None else [], "")
        return Prompt((*prompt.token_ids, *row.response_ids, *more.token_ids), (*prompt.images, *more.images))

    short, long = (make_prompt(tokens, vision, frames[:1], text) for text in ("go", "go on " * 9))
    rows = sample(short, long)
    seconds = [following(short, rows[0], frames[1]), following(long, rows[1], None)]
    first = make_prompt(tokens, vision, frames[2:4])
    rows = sample(*seconds, first)  # one new beside two that go on
    assert read[-1] == (3, len(first.token_ids))
    thirds = [following(prompt, row, frames[4]) for prompt, row in zip((*seconds, first), rows, strict=True)]
    rows = sample(*thirds)
    news = [len(now.token_ids) - len(old.token_ids) for now, old in zip(thirds, (*seconds, first), strict=True)]
    assert read[-1] == (3, max(news)) and max(news) < min(len(prompt.token_ids) for prompt in thirds)
    alone = following(thirds[1], rows[1], None)
    sample(alone)
    assert read[-1] == (1, len(alone.token_ids) - len(thirds[1].token_ids))
    sample(Prompt((*short.token_ids, 5), short.images))  # one token, fewer than a convolution looks back to
    assert read[-1] == (1, 1)
    other = Prompt(thirds[0].token_ids, (vision.resize(screen(9, *SIZES[0])), *thirds[0].images[1:]))
    sample(other)
    assert read[-1] == (1, len(other.token_ids)), "another picture"
    runner.model.save_pretrained(tmp_path)
    before = {name: weight.clone() for name, weight in runner.model.state_dict().items()}
    with torch.no_grad():
        for parameter in runner.model.parameters():
            parameter.mul_(1.1)
    runner.model.save_pretrained(tmp_path)
    runner.load_weights(tmp_path)
    sample(alone)
    assert read[-1] == (1, len(alone.token_ids)), "other weights"
    runner.model.load_state_dict(before)
    runner.prefixes.clear()
    runner.embeddings.clear()
    runner.prefixes.capacity, whole = 1, runner.prefixes.capacity
    sample(short)
    assert runner.prefixes.longest((*short.token_ids, 5), ())[0] == 0 and not len(runner.prefixes)
    runner.prefixes.capacity = whole


def test_images_matter_in_every_family(family):
    """Another picture, or the same ones in another order, give other numbers: the features reach their places."""
    runner, tokens, vision = family
    frames = [vision.resize(screen(i)) for i in range(3)]
    prompts = [make_prompt(tokens, vision, list(some)) for some in (frames[:2], frames[1::-1], frames[1:])]
    greedy = [settings(tokens, temperature=0.0, max_tokens=1)] * 3
    assert len({row.logprobs for row in runner.sample(prompts, greedy)}) == 3


def test_families_load_what_they_save(family, tmp_path):
    runner, tokens, vision = family
    runner.model.save_pretrained(tmp_path)
    # Published Qwen3.5 holds a head for several tokens beside, which nothing here loads.
    save_file({"mtp.layers.0.mlp.up_proj.weight": torch.zeros(3, 3)}, tmp_path / "model-mtp.safetensors")
    prompt, sampling = make_prompt(tokens, vision, [vision.resize(screen(0))]), settings(tokens, seed=4)
    [before] = runner.sample([prompt], [sampling])
    with torch.no_grad():
        for parameter in runner.model.parameters():
            parameter.mul_(0.5)
    runner.embeddings.clear()
    [halved] = runner.sample([prompt], [sampling])
    runner.load_weights(tmp_path)
    [after] = runner.sample([prompt], [sampling])
    assert not np.allclose(halved.logprobs, before.logprobs, atol=1e-3)
    assert after.response_ids == before.response_ids
    assert np.allclose(after.logprobs, before.logprobs, atol=1e-5)
