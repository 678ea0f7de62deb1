"""Lessons on drawn screens: a fresh model learns to read words, then to point at them and to act on what is asked.

A small model that sees demonstrations alone learns where things usually are, and not what is written there: from a
click it must find out at once which pixels are which word, which word was asked for, and where it stands. Here each has
a lesson of its own. Reading: every token of an image is told the word that is drawn on it, as the embedding that this
word has in an instruction, and where the middle of its widget is; there are many words on a screen, so that one says
much. Pointing: a screen, 'Find "Tea".', and the click. Acting: demonstrations of the suite's tasks. When it can read,
the tower stays as it is, so that each screen runs through it once: the text model alone learns the rest.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from copying_lessons import set_rate
from numpy.typing import NDArray
from PIL import ImageFont
from torch import Tensor, nn

from dart_agent.formats import get_format
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.policies.oracle_policy import snapped
from dart_agent.prompting.conversation import Conversation, ConversationConfig
from dart_gym.core.actions import Click, Move
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.fake_desktop import Button, FakeDesktop
from dart_gym.tasks.catalog.parameters import FIRST_TRAINING_SEED
from dart_gym.tasks.suites.drawn import DrawnScenario, load_tasks
from dart_gym.tasks.suites.drawn import drawn_tasks as suite
from dart_gym.tasks.suites.drawn.drawn_screens import State, Widget
from dart_train.trainer.batches.collator import Collator, ImageCache, Sample
from dart_train.trainer.image_features import ImageFeatures
from dart_train.trainer.policy_logprobs import response_logprobs, tower_features
from dart_train.trainer.settings.supervised_config import SupervisedConfig
from dart_train.trainer.supervised import ADAM_BETA2, MAX_GRAD_NORM, learning_rate_share
from dart_train.trainer.weights import checkpoint
from dart_train.trainer.weights.model_loading import load_model

SPEC = DesktopSpec(kind="fake", width=168, height=224, sandbox="none", reusable=True)
ROWS = 8
KINDS = ("text", "field", "check", "check", "set", "set", "append", "go")
Images = dict[str, NDArray[np.uint8]]
"""Screens by the names that samples have for them."""

_listed = (suite.NAMES, suite.CITIES, suite.COLORS, suite.DAYS, suite.SIZES, suite.ITEMS, suite.PLACES, suite.MENUS)
_named = (*suite.FIELDS, "size", "OK", "Finish")
WORDS = {
    **{word: word for words in (*_listed, *suite.MENUS.values()) for word in words},
    **{word: word for word in ("Color", "Day", "Size", "Next", "Back", "More", "Clear", *map(str, range(1, 20)))},
    **{word: f" {word}" for word in _named},
}
"""Words of drawn programs, and how each is written in an instruction: in quotes, or after a space."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """A screen full of words: (H, W, 3) uint8, and (word, button) of each."""

    image: NDArray[np.uint8]
    words: Sequence[tuple[str, Button]]


def lesson(rng: random.Random, desktop: FakeDesktop) -> Lesson:
    """Widgets of the suite in every row, in any state, with the pointer somewhere."""
    places = []
    for row in range(ROWS):
        left = 0
        while left < 4:
            width = min(rng.choice((1, 1, 2, 2, 4)), 4 - left)
            places.append((row, left, width))
            left += width
    words = rng.sample(sorted(WORDS), len(places))
    shown = []
    for number, ((row, left, width), word) in enumerate(zip(places, words, strict=True)):
        kind = rng.choice(KINDS if width > 1 else ("text", "field", "append", "go"))
        widget = Widget(kind, word, row, left, width, name=word, value=word)
        value = word if kind == "field" or rng.random() < 0.5 else ""
        state = State("", {word: value}, focus=word if rng.random() < 0.2 else "")
        shown.append((word, widget.drawn(state, number)))
    pointer = rng.choice(shown)[1].center
    return Lesson(asyncio.run(_screen(desktop, [button for _, button in shown], pointer)), shown)


async def _screen(desktop: FakeDesktop, buttons: Sequence[Button], pointer: tuple[int, int]) -> NDArray[np.uint8]:
    if not desktop.alive:
        await desktop.start()
    desktop.show(tuple(buttons))
    await desktop.perform(Move(*pointer))
    return await desktop.screenshot()


@dataclass(frozen=True, slots=True)
class Labels:
    """What the tokens of images show: (images, tokens) indices of words, 0 for none; (images, tokens, 2) pixels."""

    words: Tensor
    centers: Tensor


@dataclass
class Reader:
    """The reading lesson of one model.

    Attributes:
        model: with its tower, which is trained together with the embeddings of the words.
        vision: cuts images as the model wants them.
        tokens: the model's.
    """

    model: nn.Module
    vision: VisionSpec
    tokens: ModelTokens
    seed: int = 0
    _where: nn.Linear = field(init=False)

    def __post_init__(self) -> None:
        self._desktop = FakeDesktop(SPEC)
        self._rng = random.Random(self.seed)
        self._names = sorted(WORDS)
        ids = [self.tokens.encode(WORDS[word]) for word in self._names]
        if several := [word for word, found in zip(self._names, ids, strict=True) if len(found) != 1]:
            raise ValueError(f"these are not one token each: {', '.join(several)}")
        self._ids = torch.tensor([self.tokens.pad_id, *(found[0] for found in ids)])
        width = self.model.config.text_config.hidden_size
        self._where = nn.Linear(width, SPEC.width + SPEC.height)  # thrown away after the lesson

    def labels(self, lessons: Sequence[Lesson]) -> Labels:
        """What is to be read on each token of the images."""
        height, width = self.vision.resized(SPEC.height, SPEC.width)
        side = self.vision.factor * SPEC.width / width
        rows, columns = height // self.vision.factor, width // self.vision.factor
        words = torch.zeros((len(lessons), rows * columns), dtype=torch.long)
        centers = torch.zeros((len(lessons), rows * columns, 2), dtype=torch.long)
        for number, one in enumerate(lessons):
            for word, button in one.words:
                for place in tokens_of(word, button, side, columns):
                    words[number, place] = self._names.index(word) + 1
                    centers[number, place] = torch.tensor(button.center)
        return Labels(words, centers)

    def features(self, lessons: Sequence[Lesson]) -> Tensor:
        """(images, tokens, hidden) of the tower."""
        return torch.stack(image_tokens(self.model, self.vision, [one.image for one in lessons]))

    def logits(self, features: Tensor) -> Tensor:
        """(..., words + 1): how much each token looks like each word, 0 for none."""
        return features @ self.model.get_input_embeddings().weight[self._ids].T  # type: ignore[operator]

    def loss(self, lessons: Sequence[Lesson]) -> Tensor:
        """Cross-entropy of the words on all tokens, and of their widgets' places."""
        features, labels = self.features(lessons), self.labels(lessons)
        weights = torch.ones(len(self._ids))
        weights[0] = 0.1  # most tokens show nothing
        words = nn.functional.cross_entropy(self.logits(features).flatten(0, 1), labels.words.flatten(), weight=weights)
        shown = labels.words > 0
        across, down = self._where(features[shown]).split((SPEC.width, SPEC.height), -1)
        x, y = labels.centers[shown].unbind(-1)
        return words + 0.3 * (nn.functional.cross_entropy(across, x) + nn.functional.cross_entropy(down, y))

    def train(self, steps: int, *, batch_size: int = 16, learning_rate: float = 2e-3) -> Iterator[tuple[int, float]]:
        """Train, and tell the steps and the share of words that are read rightly every hundred steps."""
        weights = [
            *self.model.model.visual.parameters(),  # type: ignore[union-attr]
            self.model.get_input_embeddings().weight,  # type: ignore[operator]
            *self._where.parameters(),
        ]
        optimizer = torch.optim.AdamW(weights, betas=(0.9, 0.98), weight_decay=0.0)
        for step in range(steps):
            share = min(1.0, (step + 1) / 30, max(0.05, (steps - step) / (0.4 * steps)))
            set_rate(optimizer, learning_rate * share)
            optimizer.zero_grad()
            self.loss([lesson(self._rng, self._desktop) for _ in range(batch_size)]).backward()
            nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            if (step + 1) % 100 == 0:
                yield step + 1, self.accuracy()

    @torch.no_grad()
    def accuracy(self, screens: int = 32) -> float:
        """Share of tokens with a word on which it is read, on new screens."""
        lessons = [lesson(self._rng, self._desktop) for _ in range(screens)]
        words = self.labels(lessons).words
        read = self.logits(self.features(lessons))[..., 1:].argmax(-1) + 1
        return float((read == words)[words > 0].float().mean())


def image_tokens(model: nn.Module, vision: VisionSpec, images: Sequence[NDArray[np.uint8]]) -> list[Tensor]:
    """(tokens, hidden) of each image, as the tower gives them to the text part, with gradients."""
    patches = torch.from_numpy(np.concatenate([vision.patchify(image) for image in images]))
    grids = torch.tensor([vision.grid(image) for image in images])
    found = model.model.get_image_features(patches, grids, return_dict=True)  # type: ignore[operator, union-attr]
    return list(found.pooler_output)


def tokens_of(word: str, button: Button, side: float, columns: int) -> list[int]:
    """Places of the image tokens, row by row, on which at least five pixels, or most, of a word are.

    Args:
        word: at the end of the button's label.
        button: whose label is drawn in its middle.
        side: of a token, in pixels of the screen.
        columns: tokens in a row.
    """
    font = ImageFont.load_default()
    x, y = button.center
    right = x + font.getlength(button.label) / 2
    left = right - font.getlength(word)  # what stands before it is a tick's frame
    enough = min(5.0, 0.6 * (right - left))
    row = int(y / side)
    parts = ((column, min((column + 1) * side, right) - max(column * side, left)) for column in range(columns))
    return [row * columns + column for column, pixels in parts if pixels >= enough]


def teach_reading(model_dir: Path, output_dir: Path, steps: int, *, say: Callable[[str], None], seed: int = 0) -> None:
    """Train a fresh model's tower to read, and write it."""
    torch.manual_seed(seed)
    model = load_model(model_dir)
    for deeper in getattr(model.model.visual, "deepstack_merger_list", ()):  # silent, until later training needs them
        nn.init.zeros_(deeper.linear_fc2.weight)
        nn.init.zeros_(deeper.linear_fc2.bias)
    reader = Reader(model, VisionSpec.from_dir(model_dir), ModelTokens.load(model_dir), seed)
    for step, accuracy in reader.train(steps):
        say(f"reading: {step} steps, {accuracy:.0%} of words on new screens")
    checkpoint.write_model(model, output_dir, model_dir)


def pointing_samples(
    model_dir: Path, agent: ConversationConfig, screens: int, *, questions: int = 3, grid: int = 4, seed: int = 0
) -> tuple[list[Sample], Images]:
    """'Find "Tea".' and the click, for some words of each screen; the screens by the names in the samples."""
    tokens, vision = ModelTokens.load(model_dir), VisionSpec.from_dir(model_dir)
    conversation, actions = Conversation(tokens, vision, agent), get_format("ui_tars")
    rng, desktop = random.Random(f"pointing/{seed}"), FakeDesktop(SPEC)
    samples: list[Sample] = []
    images: Images = {}
    for _ in range(screens):
        one = lesson(rng, desktop)
        name = _kept(one.image, images)
        for word, button in rng.sample(one.words, questions):
            conversation.begin(f'Find "{WORDS[word]}".' if WORDS[word] == word else f"Find{WORDS[word]}.")
            conversation.observe(one.image)
            click = snapped(Click(*button.center), grid)
            text = actions.format((click,), vision.space(*one.image.shape[:2]))
            samples.append(Sample(conversation.prompt().token_ids, (name,), tuple(tokens.response(text))))
    return samples, images


async def acting_samples(
    model_dir: Path, agent: ConversationConfig, tasks: Sequence[str], per_task: int, *, grid: int = 4
) -> tuple[list[Sample], Images]:
    """Every step of perfect episodes on the first training seeds of some tasks, as a rollout would have prompted it."""
    tokens, vision = ModelTokens.load(model_dir), VisionSpec.from_dir(model_dir)
    conversation, actions = Conversation(tokens, vision, agent), get_format("ui_tars")
    desktop, scenario = FakeDesktop(SPEC), DrawnScenario()
    await desktop.start()
    samples: list[Sample] = []
    images: Images = {}
    for task in (task for task in load_tasks() if task.id in tasks):
        for seed in range(FIRST_TRAINING_SEED, FIRST_TRAINING_SEED + per_task):
            conversation.begin((await scenario.prepare(desktop, task, seed)).instruction)
            ended = False
            while not ended:
                screenshot = await desktop.screenshot()
                conversation.observe(screenshot)
                action = snapped(await scenario.oracle(desktop), grid)
                text = actions.format((action,), vision.space(*screenshot.shape[:2]))
                response = tuple(tokens.response(text))
                samples.append(Sample(conversation.prompt().token_ids, (_kept(screenshot, images),), response))
                conversation.respond(response)
                await desktop.perform(action)
                ended = await scenario.after_action(desktop, action)
    return samples, images


def _kept(image: NDArray[np.uint8], images: Images) -> str:
    """The name of a screen among those that are kept."""
    name = hashlib.blake2b(image.tobytes(), digest_size=16).hexdigest()
    images.setdefault(name, image)
    return name


def teach_acting(
    model_dir: Path,
    samples: Sequence[Sample],
    images: Images,
    output_dir: Path,
    config: SupervisedConfig,
    *,
    say: Callable[[str], None],
) -> None:
    """Train the text model on samples, cross-entropy of the responses, with the tower as it is; write the model."""
    torch.manual_seed(config.seed)
    model, tokens = load_model(model_dir), ModelTokens.load(model_dir)
    model.model.visual.requires_grad_(False)
    collator = Collator(tokens, VisionSpec.from_dir(model_dir), ImageCache(images.__getitem__))
    features = ImageFeatures(partial(tower_features, model), trainable=False)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, betas=(0.9, ADAM_BETA2), weight_decay=0.0)
    rng, mean = random.Random(config.seed), 0.0
    for step in range(config.max_steps):
        set_rate(optimizer, config.learning_rate * learning_rate_share(config, step, step / config.max_steps))
        batch = collator(rng.sample(samples, config.batch_size))
        logprobs, _ = response_logprobs(model, batch, tokens.suppressed_ids, features=features)
        loss = -logprobs.sum() / batch.num_tokens
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, MAX_GRAD_NORM)
        optimizer.step()
        mean += loss.item() / 100
        if (step + 1) % 100 == 0:
            say(f"acting: {step + 1} steps, {mean:.3f} nats a token")
            mean = 0.0
    checkpoint.write_model(model.requires_grad_(True), output_dir, model_dir)
