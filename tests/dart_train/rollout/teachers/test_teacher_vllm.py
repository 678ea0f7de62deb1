"""A real vLLM server as a teacher: it judges as a plain forward pass does, and may die without ending anything."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from echo_engine import EchoEngine

from dart_agent.engines.base.engine import Prompt, Sampling
from dart_agent.engines.embedded.qwen_runner import QwenRunner
from dart_agent.episodes.trajectory import Pixels, Step, Trajectory
from dart_agent.formats import get_format
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.tiny_model import build_tiny_model
from dart_gym.core.outcomes import TerminalState
from dart_train.rollout.teachers.distillation import Distillation
from dart_train.rollout.teachers.model_teacher import ModelTeacher, ModelTeacherOptions
from dart_train.rollout.teachers.teacher import Student, TeacherAwayError, TeacherError
from dart_train.rollout.teachers.teaching import Teaching
from tests.dart_agent.engines.plain_forward import make_prompt, plain_distributions, plain_logprobs, screen
from tests.helpers.vllm_server import served, tiny_config, vllm_model

__all__ = ["vllm_model"]
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]
EXACT = 1e-5


@dataclass
class Server:
    """The teacher's server, as a user starts it."""

    url: str

    def kill(self) -> None:
        """End it with all of its processes, as a machine that loses power does."""
        port = self.url.rpartition(":")[2]
        for child in psutil.Process().children():
            if port in child.cmdline():
                for process in (*child.children(recursive=True), child):
                    os.kill(process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def server(vllm_model, tmp_path_factory) -> Iterator[Server]:
    options = ("--served-model-name", "policy", "--limit-mm-per-prompt", '{"image": 3, "video": 0}')
    more = ("--enable-scale-out", "--generation-config", "vllm", "--max-model-len", "2048")
    with served(vllm_model, tmp_path_factory.mktemp("teacher") / "server.log", *options, *more) as url:
        yield Server(url)


@pytest.fixture(scope="module")
def student(vllm_model) -> Student:
    """One of the teacher's family."""
    tokens = ModelTokens.load(vllm_model)
    sampling = Sampling(16).completed(tokens)
    engine = EchoEngine("unused", "", 0, 0.0, "")
    return Student("", tokens, VisionSpec.from_dir(vllm_model), get_format("ui_tars"), sampling, engine)


def steps_of(student: Student, count: int) -> list[Step]:
    """Decisions with none to two screenshots of different sizes, whose responses nobody sampled."""
    made = []
    for number in range(count):
        images = [student.vision.resize(screen(number, 112 + 28 * place, 84)) for place in range(number % 3)]
        prompt = make_prompt(student.tokens, student.vision, images, f"Click on it {number}")
        response = student.tokens.response(f"Action: click(start_box='({number},7)')"[: 4 + 9 * number])
        pixels = Pixels(prompt=prompt.images)
        made.append(
            Step(prompt_ids=prompt.token_ids, response_ids=tuple(response), finish_reason="stop", pixels=pixels)
        )
    return made


def distillation(student: Student, model: Path, url: str) -> Distillation:
    return Distillation(student, model=str(model), url=url)


async def test_it_judges_each_token_as_a_plain_forward_pass_does(server, vllm_model, student):
    torch.set_num_threads(1)
    runner, steps = QwenRunner.load(vllm_model, student.vision), steps_of(student, 6)
    teacher = distillation(student, vllm_model, server.url)
    await teacher.start()
    taught = await asyncio.gather(*(teacher.teach(steps, place) for place in range(len(steps))))
    await teacher.close()
    for step in taught:
        assert step.pixels is not None and len(step.teacher_logprobs) == len(step.response_ids)
        expected = plain_logprobs(runner, Prompt(step.prompt_ids, step.pixels.prompt), step.response_ids, ())
        assert np.abs(np.asarray(step.teacher_logprobs) - expected.numpy()).max() < EXACT


async def test_its_likeliest_answer_is_that_of_a_plain_forward_pass(server, vllm_model, student):
    """As the expert of `dagger`: each of its tokens is the likeliest one after those before it."""
    torch.set_num_threads(1)
    runner, steps = QwenRunner.load(vllm_model, student.vision), steps_of(student, 3)
    expert = ModelTeacher(student, ModelTeacherOptions(model=str(vllm_model), url=server.url))
    await expert.start()
    for step in steps:
        prompt = await expert.prompt(step)
        assert prompt is not None
        said = await expert.generate(prompt, replace(student.sampling, temperature=0.0))
        likely = plain_distributions(runner, prompt, said.response_ids, student.sampling.suppressed_ids)
        assert 0 < len(said.response_ids) <= student.sampling.max_tokens
        assert tuple(likely.argmax(-1).tolist()) == said.response_ids
    await expert.close()


async def test_a_model_with_another_tokenizer_is_refused_before_anything_is_asked(server, student, tmp_path):
    other = build_tiny_model(tmp_path / "other", seed=3, config=tiny_config())
    values = json.loads((other / "tokenizer.json").read_text())
    words = values["model"]["vocab"]
    first, second = [place for place, (word, _) in enumerate(words) if word in ("a", "b")]
    words[first], words[second] = words[second], words[first]
    (other / "tokenizer.json").write_text(json.dumps(values))
    with pytest.raises(
        TeacherError, match="has another tokenizer than the student, whose tokens it is to read"
    ) as found:
        await distillation(student, other, server.url).start()
    assert not isinstance(found.value, TeacherAwayError)


async def test_one_that_dies_is_missed_and_nothing_else(server, vllm_model, student):
    recorded: list[Trajectory] = []
    teaching = Teaching(
        distillation(student, vllm_model, server.url), lambda one, expected: recorded.append(one), timeout_s=60.0
    )
    await teaching.start()

    async def end(number: int) -> Trajectory:
        steps = tuple(steps_of(student, 2))
        teaching.hand_in(Trajectory("t", number, terminal=TerminalState.DONE, score=0.0, steps=steps), 2)
        await teaching.settle(120.0)
        return recorded[-1]

    assert (await end(0)).taught_steps == 2
    server.kill()
    assert (await end(1)).taught_steps == 0 and len(recorded) == 2
    assert "the teacher is away" in teaching.figures()["teacher"]["away"]
    await teaching.close()
    with pytest.raises(TeacherAwayError, match="teacher: http://127.0.0.1"):
        await distillation(student, vllm_model, server.url).start()
