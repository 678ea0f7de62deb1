"""MiniWoB++ in a real browser: each page can be solved, seeds repeat, nothing is missed, nothing restarts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_gym.core.actions import Click, Drag, KeyDown, KeyUp, MouseDown, MouseUp, Move, Press, Scroll, Type, Wait
from dart_gym.core.errors import TaskError
from dart_gym.core.outcomes import EvaluationStatus, TerminalState
from dart_gym.desktops.base.desktop import DesktopSpec, SettlePolicy
from dart_gym.desktops.factory import make_desktop
from dart_gym.tasks.catalog.parameters import FIRST_TRAINING_SEED
from dart_gym.tasks.catalog.registry import get_task, make_scenario, task_ids
from dart_gym.tasks.suites.miniwob import MULTI_TURN_LIMITS
from dart_gym.tasks.suites.miniwob.miniwob_scenario import looks_like_sentinel, score_of, sentinel_after
from tests.helpers.parameters import slow_but

TASKS = task_ids("miniwob")
SEEDS = range(4)
_PATIENT = SettlePolicy(quiet_ms=1100.0, max_ms=1300.0)  # longer than a page clock ticks


@given(st.booleans(), st.floats(-1, 1))
def test_scores_lie_between_0_and_1_and_need_an_end(done, reward):
    score = score_of(done, reward)
    assert 0.0 <= score <= 1.0
    assert score == (reward if done and reward > 0 else 0.0)


def test_a_sentinel_comes_the_way_that_the_action_came():
    clicks = [Click(1, 2), Click(), Drag(((1, 2), (3, 4))), Scroll(1, 2, dy=3), MouseDown(), Move(1, 2), Wait(0.0)]
    assert {sentinel_after(action) for action in clicks} == {Click(button="middle")}
    keys = [Type("a"), Press(("ctrl", "a")), KeyDown("shift")]
    assert {sentinel_after(action) for action in keys} == {Press(("pause",))}
    assert sentinel_after(Click(1, 2, modifiers=("ctrl",))) == Click(button="middle", modifiers=("pause",))


@pytest.mark.parametrize("action", [Click(1, 2), Press(("p",)), Type("pause"), Wait(0.0), KeyDown("shift"), Scroll()])
def test_most_actions_are_no_sentinels(action):
    assert not looks_like_sentinel(action)


@pytest.mark.parametrize(
    "action",
    [
        *(Click(button="middle"), Click(1, 2, modifiers=("Pause",)), MouseDown("middle"), MouseUp("middle")),
        *(Drag(((1, 2), (3, 4)), button="middle"), Press(("ctrl", "pause")), KeyDown("pause"), KeyUp("pause")),
    ],
)
def test_a_policy_can_send_what_looks_like_one(action):
    assert looks_like_sentinel(action)


@pytest.mark.desktop
@pytest.mark.parametrize("task_id", TASKS)
def test_the_oracle_solves_the_page_within_the_step_limit(browser, task_id):
    task = get_task(task_id)
    for seed in SEEDS:
        prepared, _ = browser.reset(task, seed)
        assert prepared.frame_ready and prepared.instruction == " ".join(prepared.instruction.split()) != ""
        browser.follow_oracle(task.max_steps)
        evaluation = browser.evaluate()
        assert (evaluation.status, evaluation.score) == (EvaluationStatus.OK, 1.0), (seed, evaluation)
        assert evaluation.evaluator.startswith("miniwob/")


@pytest.mark.desktop
@pytest.mark.parametrize("task_id", slow_but(TASKS[::3], TASKS))
def test_equal_seeds_look_equal_whatever_was_before(browser, task_id):
    first = {seed: browser.reset(task_id, seed) for seed in SEEDS}
    browser.reset("miniwob/enter-text", 7)
    browser.follow_oracle(4)
    for seed in reversed(SEEDS):
        prepared, frame = browser.reset(task_id, seed)
        browser.follow_oracle(8)
        assert prepared.instruction == first[seed][0].instruction
        assert np.array_equal(frame, first[seed][1]), f"{task_id} looks different with seed {seed}"
    shown = {(prepared.instruction, frame.tobytes()) for prepared, frame in first.values()}
    constant = task_id == "miniwob/grid-coordinate"  # the same picture each time: only the instruction tells
    assert len(shown) > (1 if constant else 2)


@pytest.mark.desktop
@pytest.mark.parametrize("task_id", TASKS)
def test_what_does_not_solve_the_page_scores_0(browser, task_id):
    browser.reset(task_id, 1)
    assert not browser.step(Click(164, 218))  # beside the page
    assert not browser.step(Wait(0.0))
    evaluation = browser.evaluate(TerminalState.STEP_LIMIT)
    assert (evaluation.status, evaluation.score) == (EvaluationStatus.OK, 0.0)


@pytest.mark.desktop
@pytest.mark.parametrize(
    ("task_id", "button"),
    [
        ("miniwob/click-test-2", "subbtn2"),
        ("miniwob/click-button-sequence", "subbtn2"),
        ("miniwob/click-collapsible", "subbtn"),
        ("miniwob/enter-text", "subbtn"),
        ("miniwob/click-option", "subbtn"),
    ],
)
def test_wrong_clicks_end_with_0(browser, task_id, button):
    for seed in SEEDS:
        browser.reset(task_id, seed)
        middle = f"(r => [r.x + r.width / 2, r.y + r.height / 2])({button}.getBoundingClientRect())"
        x, y = browser.run(browser.scenario.devtools.evaluate(middle))
        click = Click(int(x), int(y))
        done = browser.step(click) or browser.step(click)
        assert done
        assert browser.evaluate().score == 0.0


@pytest.mark.desktop
def test_fail_scores_0_and_partly_right_a_part(browser):
    browser.reset("miniwob/click-test", 0)
    browser.follow_oracle(1)
    assert browser.evaluate(TerminalState.FAIL).score == 0.0
    scores = set()
    for seed in range(8):
        browser.reset("miniwob/click-checkboxes", seed)
        browser.run(browser.scenario.devtools.evaluate("document.getElementById('ch0').click()"))
        browser.run(browser.scenario.devtools.evaluate("document.getElementById('subbtn').click()"))
        assert browser.step(Wait(0.0))
        scores.add(browser.evaluate().score)
    assert all(0.0 <= score <= 1.0 for score in scores) and len(scores) > 1


@pytest.mark.desktop
@pytest.mark.parametrize("page", MULTI_TURN_LIMITS)
def test_held_out_seeds_show_what_training_seeds_never_show(browser, page):
    """The page draws until an instance is of the seed's side, by what is asked and what is to be read for it."""
    read = "[...document.querySelectorAll('#area textarea, #area td')].map(one => one.value || one.textContent).join()"

    def asked(seed):
        prepared, _ = browser.reset(f"miniwob/{page}", seed)
        return prepared.instruction, browser.run(browser.scenario.devtools.evaluate(read))

    tested = {asked(seed) for seed in range(8)}
    trained = {asked(FIRST_TRAINING_SEED + seed) for seed in range(40)}
    assert not tested & trained and len(tested) > 5 and len(trained) > 30


@pytest.mark.thorough
@pytest.mark.desktop
def test_multi_turn_pages_take_three_to_twelve_actions(browser):
    lengths = {}
    for page, limit in MULTI_TURN_LIMITS.items():
        for seed in range(3):
            browser.reset(f"miniwob/{page}", seed)
            lengths.setdefault(page, []).append(browser.follow_oracle(limit))
    means = [sum(own) / len(own) for own in lengths.values()]
    assert all(3 <= length <= 13 for own in lengths.values() for length in own) and sum(means) / len(means) >= 5


@pytest.mark.desktop
def test_no_reward_is_missed_and_no_frame_is_stale(browser):
    """Each reset shows the new page although it follows a click at once, and each click is seen before the answer."""
    frames = {seed: browser.reset("miniwob/click-test-2", seed)[1] for seed in range(60)}
    assert len({frame.tobytes() for frame in frames.values()}) == 60
    for seed, frame in frames.items():
        assert np.array_equal(browser.reset("miniwob/click-test-2", seed)[1], frame)
        assert browser.step(browser.oracle())
        assert browser.evaluate().score == 1.0


@pytest.mark.desktop
def test_the_frame_after_a_step_shows_what_it_did(browser):
    for seed in range(4):
        _, before = browser.reset("miniwob/click-collapsible", seed)
        assert not browser.step(browser.oracle())
        after = browser.screenshot()
        assert not np.array_equal(before[60:150], after[60:150])
        browser.run(browser.desktop.settle(_PATIENT))
        assert np.array_equal(browser.screenshot(), after)


@pytest.mark.desktop
@pytest.mark.parametrize("task_id", ["click-button-sequence", "click-collapsible", "click-option", "click-checkboxes"])
def test_equal_actions_look_equal(browser, task_id):
    """A button that was clicked has no focus ring, as it had at times when the sentinel's key overtook the click."""
    for seed in range(3):
        frames = set()
        for _ in range(6):
            browser.reset(f"miniwob/{task_id}", seed)
            if not browser.step(browser.oracle()):
                frames.add(browser.screenshot().tobytes())
        assert len(frames) == 1


@pytest.mark.desktop
def test_what_a_policy_sends_is_not_taken_for_the_scenarios_own(browser):
    """Each action is waited for, also after a policy has sent what the scenario counts."""
    for seed in range(3):
        browser.reset("miniwob/enter-text", seed)
        click = browser.oracle()
        for action in (Press(("pause",)), Click(80, 180, button="middle"), KeyDown("pause"), MouseDown("middle")):
            assert not browser.step(action)
        browser.step(click)
        browser.step(Type("12345 abc" * 3))
        shown = browser.run(browser.scenario.devtools.evaluate("document.getElementById('tt').value"))
        assert shown == "12345 abc" * 3


@pytest.mark.desktop
def test_typed_text_is_on_the_page_when_the_step_returns(browser):
    for seed in range(5):
        browser.reset("miniwob/enter-text", seed)
        browser.step(browser.oracle())
        browser.step(Type("äb C!" * 5))
        assert browser.run(browser.scenario.devtools.evaluate("document.getElementById('tt').value")) == "äb C!" * 5


@pytest.mark.desktop
@pytest.mark.parametrize(
    "mischief",
    [
        [Press(("f5",))],
        [Press(("ctrl", "r"))],
        [Press(("ctrl", "t"))],
        [Press(("ctrl", "w"))],
        [Press(("ctrl", "+")), Press(("ctrl", "-"))],
        [Press(("alt", "left")), Press(("f11",)), Press(("f12",)), Press(("alt", "f"))],
        [Click(80, 120, button="right"), Click(90, 140)],
        [Click(80, 120, button="middle"), Click(80, 120, button="middle", count=3)],
        [Click(30, 60, count=3), Drag(((20, 60), (150, 200)))],
        [Scroll(80, 120, dy=5), Scroll(80, 120, dx=3, dy=-9)],
        [KeyDown("ctrl"), MouseDown("left"), Move(60, 150)],
        [KeyDown("shift"), Click(80, 70)],
        [Press(("pause",)), Press(("win",)), Press(("menu",))],
    ],
    ids=lambda actions: "-".join(action.kind for action in actions) if isinstance(actions, list) else str(actions),
)
def test_no_action_leads_out_of_the_suite(browser, mischief):
    _, frame = browser.reset("miniwob/click-tab", 3)
    for action in mischief:
        browser.step(action)
    assert "left" not in browser.evaluate().detail
    pages_before = browser.scenario.page
    assert np.array_equal(browser.reset("miniwob/click-tab", 3)[1], frame)
    assert pages_before == browser.scenario.page
    browser.follow_oracle(1)
    assert browser.evaluate().score == 1.0


@pytest.mark.desktop
def test_an_episode_that_lost_its_page_scores_0_and_the_next_one_is_fine(browser):
    browser.reset("miniwob/click-test", 0)
    browser.run(browser.scenario.devtools.navigate("about:blank"))
    assert browser.step(Wait(0.0))
    evaluation = browser.evaluate()
    assert (evaluation.score, evaluation.detail) == (0.0, "the page was left")
    browser.reset("miniwob/click-test", 0)
    browser.follow_oracle(1)
    assert browser.evaluate().score == 1.0


@pytest.mark.thorough
@pytest.mark.desktop
def test_resets_restart_nothing(browser):
    def processes():
        return browser.run(browser.desktop.execute(["pgrep", "-o", "-x", "chromium|chrome"])).stdout

    before = processes()
    for task_id in TASKS:
        browser.reset(task_id, 0)
    assert before and processes() == before


@pytest.mark.desktop
def test_nothing_on_the_screen_leaks_reward_or_time(browser):
    browser.reset("miniwob/click-test", 0)
    _, frame = browser.reset("miniwob/click-test", 0)
    assert (frame[:212, 160:] == 0x55).all()  # where the page shows its reward
    browser.run(browser.desktop.settle(_PATIENT))
    assert np.array_equal(browser.screenshot(), frame)


async def test_other_desktops_are_refused():
    spec = DesktopSpec(kind="fake", width=168, height=224)
    with pytest.raises(TaskError, match="desktops that DART-Gym starts"):
        await make_scenario("miniwob").prepare(make_desktop(spec), get_task("miniwob/click-test"), 0)


async def test_there_is_no_oracle_before_a_reset():
    with pytest.raises(TaskError, match="call reset first"):
        await make_scenario("miniwob").oracle(None)
