"""Step records of made-up trajectories, in the layout of the conversation, for the trainer's benchmark.

The ids are those that a rollout leaves behind: an instruction with the first screenshot, then responses and
screenshots in turns, of which a window is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dart_agent.episodes.trajectory import Step
from dart_agent.models.model_tokens import ModelTokens


@dataclass(frozen=True, slots=True)
class Window:
    """Which screenshots a prompt keeps.

    Attributes:
        screenshots: how many of the newest it keeps at most.
        block: how many are dropped at once when there would be more; 1 is a sliding window. Between two drops every
            prompt is the beginning of the next.
    """

    screenshots: int = 5
    block: int = 1

    def first(self, turn: int) -> int:
        """The oldest screenshot in the prompt of a turn, both counted from 0."""
        over = max(0, turn + 1 - self.screenshots)
        return -(-over // self.block) * self.block


def record_steps(
    tokens: ModelTokens,
    instruction: str,
    hashes: Sequence[str],
    pads: Sequence[int],
    responses: Sequence[Sequence[int]],
    window: Window,
) -> list[Step]:
    """One step for every screenshot.

    Args:
        tokens: of the model.
        instruction: of the task.
        hashes: of the screenshots.
        pads: how many tokens each takes.
        responses: sampled ids of each step, the stop token included.
        window: which screenshots the prompts keep.
    """
    newline = tokens.encode("\n")
    user = [tokens.im_start_id, *tokens.encode("user\n")]
    assistant = [tokens.im_start_id, *tokens.encode("assistant\n")]
    opening = [*user, *tokens.encode(instruction)]
    steps = []
    for turn in range(len(hashes)):
        first = window.first(turn)
        ids = [*opening]
        for past in range(turn + 1):
            if past >= first:
                image = [tokens.vision_start_id, *[tokens.image_pad_id] * pads[past], tokens.vision_end_id]
                ids += [*([] if past == 0 else user), *image, tokens.im_end_id, *newline]
            elif past == 0:
                ids += [tokens.im_end_id, *newline]
            if past < turn:
                ids += [*assistant, *responses[past], *newline]
        ids += assistant
        steps.append(Step(tuple(ids), tuple(hashes[first : turn + 1]), tuple(responses[turn])))
    return steps
