"""TRL's asynchronous trainer and ours train the same task, and take the same steps on the same rows."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest
import torch
import torch.nn.functional as F

from dart_agent.engines.embedded.transformers_engine import TransformersEngine
from dart_lab.train.trl_async import CompletionServer, varlen_attention
from dart_lab.train.trl_side_by_side import Task, measure

pytestmark = pytest.mark.train


@pytest.mark.scale
@pytest.mark.timeout(600)
def test_both_train_the_task_and_take_the_same_steps_on_the_same_rows():
    report = measure(25, lambda text: None)
    assert all(aim.met(report.keys[name]) for name, aim in report.aims.items()), report.keys
    rewards = [value for name, value in report.keys.items() if name.startswith("reward_")]
    assert len(rewards) == 4 and all(0 < reward < 1 for reward in rewards)


def test_the_attention_that_stands_in_is_that_of_whole_sequences():
    """Two sequences that share their first three tokens, laid out as a tree, against each by itself."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(7, heads, 8, dtype=torch.float64) for heads in (4, 2, 2))  # 0-2, 3-4 | 5-6
    paths = [[0, 1, 2], [0, 1, 2, 3, 4], [0, 1, 2, 5, 6]]
    kv = torch.tensor(sum(paths, []))
    bounds = [torch.tensor([0, *torch.tensor(lengths).cumsum(0)]) for lengths in ((3, 2, 2), (3, 5, 5))]
    options = {"softmax_scale": 0.3, "causal": True, "window_size": (-1, -1)}
    found = varlen_attention(query, key[kv], value[kv], *bounds, 3, 5, **options)
    for path in paths[1:]:
        one = (part[path].transpose(0, 1) for part in (query, key, value))
        expected = F.scaled_dot_product_attention(*one, is_causal=True, scale=0.3, enable_gqa=True).transpose(0, 1)
        torch.testing.assert_close(found[path], expected)
    with pytest.raises(ValueError, match="causal"):
        varlen_attention(query, key[kv], value[kv], *bounds, 3, 5, **options | {"window_size": (4, 0)})


def test_the_server_answers_as_trl_reads_it_and_refuses_what_biases(tmp_path):
    task = Task(tmp_path / "model")
    request = {"prompt": [*task.tokens.encode("Click")], "max_tokens": 4, "temperature": 1.0, "seed": 1, "top_k": 0}

    def ask(path: str, **changes: object) -> dict:
        body = json.dumps(request | changes).encode()
        with urllib.request.urlopen(urllib.request.Request(server.url + path, body), timeout=30) as reply:
            return json.loads(reply.read())

    with CompletionServer(TransformersEngine(task.dir), task.tokens) as server:
        (choice,) = ask("/v1/completions")["choices"]
        assert len(choice["token_ids"]) == len(choice["logprobs"]["token_logprobs"]) >= 1
        assert ask("/v1/completions")["choices"] == [choice]  # of the same seed
        for path, changes, status in (("/v1/models", {}, 404), ("/v1/completions", {"top_p": 0.9}, 400)):
            with pytest.raises(urllib.error.HTTPError) as refused:
                ask(path, **changes)
            assert refused.value.code == status
        assert server.answered == 2
