"""A model as a judge: it reads a rubric, what was asked, what was done and the last screens, and answers in one line.

The answer's last line that says "Verdict: yes", "Verdict: no" or "Score: 0.7" counts; a text without one is no
judgement. What a screen or an instruction says is data from strangers: a judge may be talked into a yes, which is why
its agreement with evaluators is measured (`dart-agent judge`) before it is trained with.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import Field

from dart_agent.engines.base.engine import EngineError, ModelEngine, Prompt, Sampling
from dart_agent.engines.http.openai_compatible import OpenAICompatibleEngine
from dart_agent.episodes.trajectory import Trajectory
from dart_agent.judging.judge import JudgeError, Judgement, Screens
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_gym.core.errors import ConfigurationError
from dart_gym.core.section import Section

RUBRIC = (
    "Judge whether the task was accomplished. It was only if the last screen shows, or the actions leave no doubt, "
    "that everything asked for was done and nothing else was broken. If you cannot tell, it was not."
)
ASKED = (
    "You judge what an agent did on a computer.\n{rubric}\n\nTask: {instruction}\n\nActions:\n{actions}\n\n"
    "The last {count} screens follow, in their order.\n"
)
ANSWER = '\nAnswer with one sentence of reasons, and then with one line: "Verdict: yes" or "Verdict: no".'
MOST_ACTIONS, LONGEST_ACTION = 50, 300
_VERDICT = re.compile(r"\b(?:verdict|score)\W{1,5}(yes|no|true|false|[01](?:\.\d+)?)(?!\w|\.\d)", re.IGNORECASE)


class ModelJudgeOptions(Section):
    """Options of `model`."""

    url: str = Field(
        description="Base URL of chat completions (http://host/v1), such as vLLM's or a hosted model's; or an engine "
        "of ours (ws://), with a directory as its model.",
    )
    model: str = Field(description="Name that the server gives the model; for an engine of ours its directory.")
    rubric: str = Field(RUBRIC, description="What it is to judge by, in words.")
    rubric_file: str | None = Field(None, description="A file with these words instead.")
    screens: int = Field(3, ge=1, description="Screenshots that it sees, the last ones.")
    max_tokens: int = Field(300, ge=1, description="Longest answer in tokens.")
    timeout_s: float = Field(120.0, gt=0, description="Seconds for an episode.")


class ModelJudge:
    """Asks a model about each episode."""

    Options = ModelJudgeOptions

    def __init__(self, **options: Any) -> None:
        self._options = ModelJudgeOptions.parse(options)
        self._rubric = self._options.rubric
        if self._options.rubric_file is not None:
            try:
                self._rubric = Path(self._options.rubric_file).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigurationError(
                    f"options.rubric_file: cannot read {self._options.rubric_file}: {error}"
                ) from error
        self._engine: ModelEngine | None = None
        self._tokens = ModelTokens.plain()
        self._vision = VisionSpec(min_pixels=56 * 56, max_pixels=1280 * 28 * 28)

    async def start(self) -> None:
        """Connect."""
        options = self._options
        if options.url.startswith("http"):
            self._engine = OpenAICompatibleEngine(options.url, options.model, self._tokens, timeout_s=options.timeout_s)
            return
        from dart_agent.engines.engine_kinds import connect_engine

        self._tokens, self._vision = ModelTokens.load(options.model), VisionSpec.from_dir(options.model)
        self._engine = connect_engine(options.url, options.model, request_timeout_s=options.timeout_s)

    async def judge(self, episode: Trajectory, screens: Screens) -> Judgement:
        """Ask about an episode.

        Raises:
            JudgeError: the model did not answer.
        """
        if self._engine is None:
            raise JudgeError("the judge was not started")
        prompt = judge_prompt(episode, screens, self._rubric, self._options.screens, self._tokens, self._vision)
        sampling = Sampling(self._options.max_tokens, temperature=0.0).completed(self._tokens)
        try:
            answer = await self._engine.generate(prompt, sampling)
        except EngineError as error:
            raise JudgeError(f"the judge's model did not answer: {error}") from error
        return read_verdict(answer.text)

    async def close(self) -> None:
        """Close the connection."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()


def judge_prompt(
    episode: Trajectory, screens: Screens, rubric: str, count: int, tokens: ModelTokens, vision: VisionSpec
) -> Prompt:
    """Return the question about an episode. Texts from outside are encoded as plain text. Pure."""
    said = [(step.text or str(list(step.actions)))[:LONGEST_ACTION] for step in episode.steps]
    numbered = [f"{number}. {text}" for number, text in enumerate(said, 1)]
    if len(numbered) > MOST_ACTIONS:
        numbered = [f"({len(numbered) - MOST_ACTIONS} actions before)", *numbered[-MOST_ACTIONS:]]
    images = tuple(vision.resize(screens[place]) for place in range(max(0, len(screens) - count), len(screens)))
    asked = ASKED.format(
        rubric=rubric, instruction=episode.instruction, actions="\n".join(numbered) or "none", count=len(images)
    )
    ids = [tokens.im_start_id, *tokens.encode(f"user\n{asked}")]
    for image in images:
        pads = [tokens.image_pad_id] * vision.num_tokens(image)
        ids += [tokens.vision_start_id, *pads, tokens.vision_end_id]
    ids += [*tokens.encode(ANSWER), tokens.im_end_id, *tokens.encode("\n")]
    return Prompt((*ids, tokens.im_start_id, *tokens.encode("assistant\n")), images)


def read_verdict(text: str) -> Judgement:
    """Return the judgement in a model's answer: its last verdict or score; without a value where it has none. Pure."""
    found = _VERDICT.findall(text)
    if not found:
        return Judgement(said=text[:2000])
    word = found[-1].lower()
    value = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}.get(word)
    return Judgement(float(word) if value is None else value, said=text[:2000])
