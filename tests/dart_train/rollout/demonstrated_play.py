"""For tests of demonstrations: an oracle plays them into a run."""

from __future__ import annotations

from collections.abc import Callable

from dart_agent.episodes.play_list import play_list
from dart_agent.episodes.trajectory import Trajectory
from dart_agent.formats import get_format
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.prompting.conversation import ConversationConfig
from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_train.data.manager.data_manager import DataManager
from dart_train.rollout.play.oracle_demonstrations import DemonstratingPolicy, DemonstrationStore, plan_demonstrations
from dart_train.rollout.play.recorder import Recorder
from dart_train.rollout.schedule.scheduler import Assignment


async def demonstrate(
    data: DataManager,
    cluster_url: str,
    counts: dict[str, int],
    *,
    tokens: ModelTokens,
    vision: VisionSpec,
    conversation: ConversationConfig,
    on_episode: Callable[[Trajectory], object] = lambda episode: None,
) -> tuple[list[Assignment], DemonstrationStore, Recorder]:
    """Record `counts` demonstrations of each task; return the plan, and who kept and recorded what."""
    recorder = Recorder(data)
    plan = plan_demonstrations(counts)
    store = DemonstrationStore(plan, recorder)
    await play_list(
        ClusterClient(cluster_url),
        lambda session: DemonstratingPolicy(
            session, tokens=tokens, vision=vision, action_format=get_format("ui_tars"), conversation=conversation
        ),
        store.keys,
        concurrency=3,
        store=store,
        on_episode=on_episode,
    )
    recorder.close()
    return plan, store, recorder
