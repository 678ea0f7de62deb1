from __future__ import annotations

import pytest
from demonstrated_play import demonstrate

from dart_agent.formats import get_format
from dart_agent.models.coordinates import CoordinateSpace
from dart_agent.policies.oracle_policy import snapped
from dart_agent.prompting.conversation import Conversation
from dart_gym.core.actions import Click, Done
from dart_gym.tasks.catalog.parameters import FIRST_TRAINING_SEED
from dart_train.rollout.play.oracle_demonstrations import plan_demonstrations

TASKS = ["fake/click-button", "fake/two-steps"]


@pytest.mark.parametrize(("grid", "x", "y"), [(1, 43, 57), (4, 44, 56), (10, 40, 60)])
def test_clicks_are_snapped_to_the_grid(grid, x, y):
    assert snapped(Click(43, 57, button="right"), grid) == Click(x, y, button="right")
    assert snapped(Done(), grid) == Done() and snapped(Click(), grid) == Click()


@pytest.mark.parametrize("model", [(308, 168), (252, 196), (1280, 720), (1288, 728)])
def test_clicks_on_a_grid_are_whole_numbers_of_the_model(model):
    space = CoordinateSpace((1280, 720), model)
    for x, y in ((376, 112), (1207, 112), (839, 172), (2, 717)):
        click = snapped(Click(x, y), 4, space)
        assert "." not in get_format("ui_tars").format((click,), space)
        assert abs(click.x - x) <= 5 and abs(click.y - y) <= 5
    assert snapped(Click(376, 113), 1, space) == Click(376, 113)


def test_the_plan_uses_training_seeds_once_each():
    plan = plan_demonstrations(dict.fromkeys(TASKS, 5))
    assert len({(item.task_id, item.seed) for item in plan}) == len(plan) == 10
    assert min(item.seed for item in plan) == FIRST_TRAINING_SEED


async def test_demonstrations_are_recorded_with_the_prompts_that_a_model_would_have_had(
    cluster_url, data, tokens, vision, short
):
    told: list[int] = []
    plan, store, recorder = await demonstrate(
        data,
        cluster_url,
        dict.fromkeys(TASKS, 12),
        tokens=tokens,
        vision=vision,
        conversation=short,
        on_episode=lambda episode: told.append(episode.seed),
    )
    assert store.kept == recorder.recorded == 24 and sorted(told) == sorted(item.seed for item in plan)
    found = list(data.trajectories(source="oracle"))
    assert sorted((t.task_id, t.seed) for t in found) == sorted((item.task_id, item.seed) for item in plan)
    assert data.ready() == (0, 0)  # demonstrations are no groups
    conversation = Conversation(tokens, vision, short)
    for trajectory in found:
        assert trajectory.score == 1.0 and len(trajectory.steps) == (2 if "two" in trajectory.task_id else 1)
        conversation.begin(trajectory.instruction)
        for step in trajectory.steps:
            conversation.observe(data.load_image(step.image_hashes[-1]))
            assert conversation.prompt().token_ids == step.prompt_ids
            assert step.response_ids == tuple(tokens.response(step.text)) and step.logprobs == ()
            conversation.respond(step.response_ids)
