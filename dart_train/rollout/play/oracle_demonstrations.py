"""Demonstrations: a scripted oracle plays, and its actions are recorded in the words of a model.

The conversation makes the recorded prompts and ids as it does for a policy. Training therefore sees what a rollout
would have seen.
"""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext

from dart_agent.engines.base.engine import Generation
from dart_agent.episodes.play_list import EpisodeKey
from dart_agent.episodes.trajectory import Trajectory
from dart_agent.formats.grammar.action_format import ActionFormat
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.policies.oracle_policy import snapped
from dart_agent.policies.policy import Decision, Episode, PlayableSession
from dart_agent.prompting.conversation import Conversation, ConversationConfig
from dart_gym.core.outcomes import Observation
from dart_gym.tasks.catalog.parameters import FIRST_TRAINING_SEED
from dart_train.core.data_states import ORACLE_SOURCE
from dart_train.rollout.play.recorder import Recorder
from dart_train.rollout.play.rollouts import Rollout
from dart_train.rollout.schedule.scheduler import Assignment


class DemonstratingPolicy:
    """A policy that takes the actions of a session's oracle, in the words of a model."""

    def __init__(
        self,
        session: PlayableSession,
        *,
        tokens: ModelTokens,
        vision: VisionSpec,
        action_format: ActionFormat,
        conversation: ConversationConfig,
        grid: int = 1,
    ) -> None:
        """Build the policy; clicks lie on multiples of `grid` pixels."""
        self._session = session
        self._tokens = tokens
        self._vision = vision
        self._format = action_format
        self._conversation = Conversation(tokens, vision, conversation, action_format)
        self._grid = grid

    def reset(self, episode: Episode) -> None:
        """Begin a new episode."""
        self._conversation.begin(episode.instruction)

    async def act(self, observation: Observation) -> Decision:
        """Return the oracle's action, with the prompt that a model would have had."""
        self._conversation.observe(observation.screenshot, observation.action_error)
        prompt = self._conversation.prompt()
        space = self._vision.space(*observation.screenshot.shape[:2])
        action = snapped(await self._session.oracle(), self._grid, space)
        text = self._format.format((action,), space)
        ids = tuple(self._tokens.response(text))
        self._conversation.respond(ids)
        generation = Generation(text, ids, (), version=(0, 0), finish_reason="stop", engine="oracle")
        return Decision((action,), text, prompt=prompt, generation=generation)


def plan_demonstrations(counts: dict[str, int], first: int = FIRST_TRAINING_SEED) -> list[Assignment]:
    """Return `counts` episodes of each task, on seeds that no evaluation uses; task by task, to keep pages loaded."""
    return [
        Assignment(task, first + index, f"{task}@{first + index}#demo", 0, 0, first + index, None)
        for task, count in counts.items()
        for index in range(count)
    ]


class DemonstrationStore:
    """An `EpisodeStore` that records successful demonstrations and drops the others."""

    def __init__(self, assignments: Iterable[Assignment], recorder: Recorder) -> None:
        self.kept = 0
        self._assignments = {(item.task_id, item.seed): item for item in assignments}
        self._recorder = recorder
        self.keys = list(self._assignments)

    def known(self) -> Mapping[EpisodeKey, Trajectory]:
        """Return no episodes: all are still to be played."""
        return {}

    def recorder(self, key: EpisodeKey) -> AbstractContextManager[Rollout]:
        """Return the recorder of an oracle episode."""
        return nullcontext(Rollout(self._assignments[key], ORACLE_SOURCE))

    def finish(self, rollout: Rollout, trajectory: Trajectory) -> None:
        """Record a success."""
        if (trajectory.score or 0.0) > 0.5:
            rollout.trajectory = trajectory
            self._recorder.put(rollout.trajectory, rollout.assignment.group_size)
            self.kept += 1
