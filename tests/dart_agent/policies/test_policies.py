"""Policies: what the model wrote becomes a decision, whatever it wrote."""

import numpy as np
import pytest

from dart_agent.engines.base.engine import EngineError, EngineInfo, Generation, Prompt, Sampling
from dart_agent.formats import get_format
from dart_agent.policies.oracle_policy import OraclePolicy
from dart_agent.policies.policy import Episode
from dart_agent.policies.policy_factory import policy_factory
from dart_agent.policies.random_policy import RandomPolicy
from dart_agent.policies.vlm_policy import VLMPolicy, step_seed
from dart_agent.prompting.conversation import ConversationConfig
from dart_gym.core.actions import Click, Done, Press, Scroll, Type, Wait
from dart_gym.core.errors import ConfigurationError
from dart_gym.core.outcomes import Observation, TerminalState


class ScriptedEngine:
    """Says given texts, one after the other; None is an engine that is gone."""

    def __init__(self, tokens, texts: list[str | None]):
        self.tokens, self.texts = tokens, list(texts)
        self.calls: list[tuple[Prompt, Sampling]] = []

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        self.calls.append((prompt, sampling))
        text = self.texts.pop(0)
        if text is None:
            raise EngineError("gone")
        ids = tuple(self.tokens.response(text))
        return Generation(text, ids, (0.0,) * len(ids), (1, 1), "stop")

    async def update_weights(self, path: str, version: int) -> None:
        """It has none."""

    async def info(self) -> EngineInfo:
        return EngineInfo("scripted", "none", 1)

    async def close(self) -> None:
        """Nothing to close."""


def observation(error: str = "", height: int = 100, width: int = 77) -> Observation:
    return Observation(np.zeros((height, width, 3), np.uint8), "Do it", error)


@pytest.fixture
def make(tokens, vision):
    def build(*texts: str | None, **settings) -> tuple[VLMPolicy, ScriptedEngine]:
        engine = ScriptedEngine(tokens, list(texts))
        policy = VLMPolicy(
            engine,
            tokens=tokens,
            vision=vision,
            action_format=get_format("ui_tars"),
            conversation=ConversationConfig(style="short"),
            **settings,
        )
        policy.reset(Episode("fake/x", "Do it", seed=4))
        return policy, engine

    return build


async def test_actions_in_screen_pixels(make, tokens):
    policy, engine = make("Thought: there\nAction: click(start_box='(42,56)')\n\ntype(content='x')")
    decision = await policy.act(observation())
    assert decision.actions == (Click(38, 50), Type("x")), "the model saw 84x112, the screen has 77x100"
    assert (decision.thought, decision.terminal, decision.error) == ("there", None, "")
    prompt, sampling = engine.calls[0]
    assert decision.prompt is prompt
    assert prompt.images[0].shape == (112, 84, 3)
    assert decision.generation.response_ids[-1] == tokens.im_end_id
    assert (sampling.stop_ids, sampling.suppressed_ids) == (tokens.stop_ids, tokens.suppressed_ids)


async def test_history_and_errors_are_in_the_next_prompt(make, tokens):
    policy, engine = make("Action: wait()", "Action: wait()")
    await policy.act(observation())
    await policy.act(observation("off the screen"))
    text = tokens.decode(engine.calls[1][0].token_ids)
    assert text.count("Action: wait()") == 1
    assert "The last action failed: off the screen" in text
    policy.reset(Episode("fake/x", "Other", seed=5))
    engine.texts = ["Action: wait()"]
    await policy.act(observation())
    assert "wait" not in tokens.decode(engine.calls[2][0].token_ids)


async def test_what_cannot_be_parsed_ends_the_episode_and_keeps_the_ids(make):
    policy, _ = make("I do not know")
    decision = await policy.act(observation())
    assert (decision.terminal, decision.actions, decision.text) == (TerminalState.PARSE_ERROR, (), "I do not know")
    assert "no 'Action:'" in decision.error
    assert decision.prompt and decision.generation.response_ids


async def test_a_thought_that_the_prompt_opened_is_not_done(tokens, vision):
    call = '<tool_call>{{"name": "computer_use", "arguments": {{"action": "{}", {}}}}}</tool_call>'
    end, wait = call.format("terminate", '"status": "success"'), call.format("wait", '"time": 1')
    thoughts = f"Done? {end} I could write <tool_call> now."
    engine = ScriptedEngine(tokens, [f"{thoughts}\n</think>\n\nAction: I wait.\n{wait}", thoughts])
    config = ConversationConfig(preset="qwen3-vl-thinking")
    form = get_format("qwen:3")
    policy = VLMPolicy(
        engine, tokens=tokens, vision=vision, action_format=form, conversation=config, sampling=Sampling(max_tokens=400)
    )
    policy.reset(Episode("fake/x", "Do it", seed=4))
    first = await policy.act(observation())
    assert (first.actions, first.error) == ((Wait(1.0),), "")
    assert first.thought.startswith(thoughts)
    assert first.generation.text in first.text, "what is trained on is all that was sampled"
    second = await policy.act(observation())
    assert (second.actions, second.terminal) == ((), TerminalState.PARSE_ERROR)
    assert "ended while thinking" in second.error


async def test_a_lost_engine_is_a_model_error(make):
    policy, _ = make(None)
    decision = await policy.act(observation())
    assert (decision.terminal, decision.error, decision.generation) == (TerminalState.MODEL_ERROR, "gone", None)


async def test_every_step_and_episode_has_a_seed(make):
    policy, engine = make(*["Action: wait()"] * 6, sampling=Sampling(temperature=0.5))
    for seed in (1, 2, 1):
        policy.reset(Episode("fake/x", "Do it", seed))
        await policy.act(observation())
        await policy.act(observation())
    seeds = [sampling.seed for _, sampling in engine.calls]
    assert seeds[:2] == seeds[4:]
    assert len(set(seeds)) == 4
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert step_seed(-1, 0) == step_seed(2**64 - 1, 0), "any integer is a seed"
    assert engine.calls[0][1].temperature == 0.5


async def test_from_dir(processing_dir, tokens):
    engine = ScriptedEngine(tokens, ["Action: finished(content='ok')"])
    policy = VLMPolicy.from_dir(engine, processing_dir, conversation=ConversationConfig(style="short"))
    policy.reset(Episode("fake/x", "Do it"))
    assert (await policy.act(observation())).actions == (Done("ok"),)


async def test_random_policy_repeats_itself():
    policy = RandomPolicy()
    rounds = []
    for seed in (1, 1, 2):
        policy.reset(Episode("fake/x", "Do it", seed))
        rounds.append([(await policy.act(observation())).actions[0] for _ in range(50)])
    assert rounds[0] == rounds[1] != rounds[2]
    assert all(isinstance(action, Click) and action.x < 77 and action.y < 100 for action in rounds[0])
    varied = RandomPolicy(clicks_only=False)
    varied.reset(Episode("fake/x", "Do it"))
    kinds = {type((await varied.act(observation())).actions[0]) for _ in range(100)}
    assert kinds == {Click, Type, Press, Scroll}


async def test_oracle_policy():
    async def oracle():
        return Done("42")

    policy = OraclePolicy(oracle)
    policy.reset(Episode("fake/x", "Do it"))
    assert (await policy.act(observation())).actions == (Done("42"),)


def test_policies_by_name(tmp_path, monkeypatch):
    assert isinstance(policy_factory("random")(None), RandomPolicy)
    (tmp_path / "own_policy_module.py").write_text(
        "from dart_agent.policies.random_policy import RandomPolicy as Mine\n"
        "class Half:\n    pass\nmake = lambda: 3\nnumber = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert isinstance(policy_factory("own_policy_module:Mine")(None), RandomPolicy)
    with pytest.raises(ConfigurationError, match="without the methods"):
        policy_factory("own_policy_module:make")(None)
    for spec, says in (
        ("rando", "did you mean 'random'.*module:Class"),
        ("own_policy_module:Half", "lacks reset and act"),
        ("no_such_module:X", "no_such_module"),
        ("own_policy_module:X", "has no X"),
        ("own_policy_module:number", "not a class"),
    ):
        with pytest.raises(ConfigurationError, match=says):
            policy_factory(spec)


@pytest.mark.parametrize(
    ("text", "reason", "logprobs", "done"),
    [
        ("maybe {call} or", "length", (), False),  # cut off before the thought was closed, and no mark says so
        ("maybe</think>{call}", "length", (), True),
        ("<think>maybe</think>{call}", "stop", (), True),
        ("{call}", "stop", (), True),  # the server took the thought away
        ("maybe {call} or", "stop", (-1.0,), False),  # the prompt opened it, and it was never closed
    ],
)
async def test_a_thought_is_not_done_behind_a_server_that_opens_it_itself(tokens, vision, text, reason, logprobs, done):
    call = '<tool_call>{"name": "computer_use", "arguments": {"action": "terminate", "status": "success"}}</tool_call>'

    class Server:
        async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
            said = text.replace("{call}", call)
            ids = tuple(tokens.encode("x")) if logprobs else tuple(tokens.encode(said))
            return Generation(said, ids, logprobs, (0, 0), reason)

    config = ConversationConfig(preset="qwen3-vl-thinking")
    chosen = get_format("qwen:3")
    policy = VLMPolicy(Server(), tokens=tokens, vision=vision, action_format=chosen, conversation=config)
    policy.reset(Episode("fake/x", "Do it", seed=4))
    decision = await policy.act(observation())
    assert decision.actions == ((Done(),) if done else ())
    assert done or "ended while thinking" in decision.error
