"""DART in one file: asynchronous GRPO for an agent that looks at a screen and clicks. It needs torch and dart_gym.

A drawn desktop shows four buttons and the task says which one to click ("Click the red button 'Save'."). A network of
a few thousand weights sees the screenshot and the sentence and chooses one of 48 cells to click on. It begins by
clicking anywhere, and after two minutes on two cores it does what it is told, on screens that it has never seen.

    python examples/dart_in_one_file.py

Two threads, as in the real thing (arXiv 2509.23866):

    rollouts    play groups of episodes on many desktops at once, whichever is ready next (send and recv); they sample
                with whatever weights were published last, and never wait for the learner
    learner     takes finished groups from a buffer, makes an update, publishes weights, and never waits for a desktop

So the policy that sampled a step, mu, is some versions older than the policy that learns from it, pi. What makes that
sound are three numbers per step, each explained where it is computed: the advantage (`advantages`), the truncated
importance weight (`objective`), and whether the step's entropy is high enough to count (`select`).
"""

from __future__ import annotations

import argparse
import copy
import queue
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

import dart_gym

TASK = "fake/click-button"
ROWS, COLUMNS, CELL = 8, 6, 28  # the screen of 224 x 168 pixels in cells; a click goes to the middle of one
SHRINK = 4  # the network sees every fourth pixel
WORDS = 64  # each word of the instruction is one of so many, by a hash
TRAIN_SEED = 1_000_000  # screens from this seed on are trained on, those below are held out


@dataclass(frozen=True)
class Args:
    """What may be set on the command line."""

    seed: int = 1
    updates: int = 100  # batches that the learner trains on
    seconds: float = 120.0  # and at most this long
    publish_every: int = 3  # updates between two versions that rollouts see
    desktops: int = 16  # played at once
    group_size: int = 8  # G: episodes of one screen, which are compared with one another
    groups_per_update: int = 4
    max_clicks: int = 3  # a click on the background is no mistake; the third one ends the episode
    max_staleness: int = 8  # groups that were sampled by weights older than this are thrown away
    learning_rate: float = 3e-3
    epochs: int = 2  # passes over each batch: from the second on pi is not pi_old any more, and the clip can act
    epsilon: float = 0.2  # the ratio pi / pi_old is clipped to [1 - epsilon, 1 + epsilon_high]
    epsilon_high: float = 0.28
    truncation: float = 1.0  # C: pi_old / mu counts at most this much
    keep: float = 0.8  # the share of the steps that count: those of highest entropy
    test_episodes: int = 100


# --- the policy -----------------------------------------------------------------------------------------------------


class Policy(nn.Module):
    """A distribution over the cells of the screen: how well does what is in the cell fit what is asked for?

    Every cell becomes a key k_c, the mean of the words' embeddings a query q, and pi(c) = softmax_c(q . k_c / sqrt(d)).
    """

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        patch = CELL // SHRINK
        self.see = nn.Sequential(nn.Conv2d(3, width, patch, stride=patch), nn.ReLU(), nn.Conv2d(width, width, 1))
        self.read = nn.Sequential(nn.EmbeddingBag(WORDS, width, mode="mean"), nn.ReLU(), nn.Linear(width, width))
        self.scale = width**-0.5

    def forward(self, screens: Tensor, words: Tensor) -> Tensor:
        """Log pi of every cell, (N, cells), for screens (N, 56, 42, 3) of uint8 and words (N, length) of int64."""
        keys = self.see(screens.permute(0, 3, 1, 2) / 127.5 - 1).flatten(2)  # (N, width, cells)
        query = self.read(words)[:, None]  # (N, 1, width)
        return (query @ keys * self.scale).squeeze(1).log_softmax(-1)


def look(observation: dict[str, Any]) -> tuple[np.ndarray, list[int]]:
    """What the network sees of an observation: a small screenshot, and the words as numbers."""
    words = observation["instruction"].lower().replace("'", "").rstrip(".").split()
    return observation["screenshot"][::SHRINK, ::SHRINK].copy(), [zlib.crc32(word.encode()) % WORDS for word in words]


def click(cell: int) -> dart_gym.Click:
    """A click into the middle of a cell."""
    row, column = divmod(cell, COLUMNS)
    return dart_gym.Click(column * CELL + CELL // 2, row * CELL + CELL // 2)


# --- what is recorded ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Step:
    """One decision: what was seen, what was chosen, how likely that was to the weights that chose it, and which."""

    screen: np.ndarray  # (56, 42, 3) uint8
    words: list[int]
    cell: int
    logprob: float  # log mu(cell)
    version: int  # of the weights mu


@dataclass(slots=True)
class Episode:
    """One playing of a screen."""

    seed: int
    steps: list[Step] = field(default_factory=list)
    reward: float = 0.0  # the task's score, 0 or 1, known at the end only


Group = list[Episode]  # of one seed: the same screen and the same words, played G times


# --- rollouts -------------------------------------------------------------------------------------------------------


@dataclass
class Published:
    """What rollouts sample with. The learner replaces the tuple as a whole, so that reading it needs no lock."""

    newest: tuple[int, dict[str, Tensor]]  # version and weights

    @classmethod
    def of(cls, version: int, policy: Policy) -> Published:
        """A copy: the learner goes on changing its own weights."""
        return cls((version, copy.deepcopy(policy.state_dict())))


def play(args: Args, published: Published, seeds: Iterator[int], seed: int) -> Iterator[Episode]:
    """Play one seed after another on all desktops at once, until there are none; yields episodes as they end.

    No desktop waits for another. Whenever some have answered, those and only those are looked at, in one batch, with
    the newest weights: an episode may begin with one version and end with the next.
    """
    envs: Any = gym.make_vec("DartGym/Desktop-v0", num_envs=args.desktops, task=TASK, max_episode_steps=args.max_clicks)
    policy, version = Policy(), -1
    generator = torch.Generator().manual_seed(seed)
    playing: dict[int, Episode] = {}

    def begin(env_ids: list[int]) -> None:
        pairs = list(zip(env_ids, seeds, strict=False))  # the seeds may end before the desktops do
        playing.update({env_id: Episode(own) for env_id, own in pairs})
        envs.async_reset([env_id for env_id, _ in pairs], seeds=[own for _, own in pairs])

    begin(list(range(envs.num_envs)))
    while playing:
        ready, ended = [], []
        for transition in envs.recv(min_ready=1):
            episode = playing[transition.env_id]
            if not (transition.terminated or transition.truncated):
                ready.append((transition.env_id, episode, look(transition.observation)))
                continue
            del playing[transition.env_id]
            ended.append(transition.env_id)
            if not transition.info["env_fault"]:  # a broken desktop says nothing about the policy
                episode.reward = transition.info["score"]
                yield episode
        begin(ended)
        if not ready:
            continue
        if published.newest[0] != version:
            version, state = published.newest
            policy.load_state_dict(state)
        with torch.no_grad():
            log_p = policy(*collate([seen for _, _, seen in ready]))
        cells = torch.multinomial(log_p.exp(), 1, generator=generator).squeeze(1)
        for (_, episode, (screen, words)), cell, row in zip(ready, cells.tolist(), log_p, strict=True):
            episode.steps.append(Step(screen, words, cell, float(row[cell]), version))
        envs.send([click(cell) for cell in cells.tolist()], [env_id for env_id, _, _ in ready])
    envs.close()


def collate(seen: list[tuple[np.ndarray, list[int]]]) -> tuple[Tensor, Tensor]:
    """The inputs of the network: (N, 56, 42, 3) screens and (N, length) words."""
    return torch.from_numpy(np.stack([screen for screen, _ in seen])), torch.tensor([words for _, words in seen])


def rollouts(args: Args, published: Published, buffer: queue.Queue[Group], stop: threading.Event) -> None:
    """The rollout thread: fills the buffer with groups until it is told to stop."""

    def seeds() -> Iterator[int]:
        number = TRAIN_SEED * args.seed
        while not stop.is_set():
            yield from [number] * args.group_size
            number += 1

    open_groups: dict[int, Group] = {}
    for episode in play(args, published, seeds(), args.seed):
        group = open_groups.setdefault(episode.seed, [])
        group.append(episode)
        if len(group) == args.group_size:
            buffer.put(open_groups.pop(episode.seed))


# --- the learner ----------------------------------------------------------------------------------------------------


def advantages(group: Group) -> list[float]:
    """How much better than the others of its group each episode was, for each of its steps.

        A_i = (R_i - mean_D R) / (std_D R + 1e-6),    D: all *steps* of the group (DART)

    No value network: the other episodes of the same screen say what was to be expected. A group in which all succeed,
    or none, would have advantages of 0: there is nothing to learn from it.
    """
    rewards = np.array([episode.reward for episode in group for _ in episode.steps], np.float32)
    return ((rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)).tolist()


def select(entropies: Tensor, keep: float) -> Tensor:
    """Which steps count: 1{H_t >= tau}, tau the (1 - keep) quantile of the entropies H of the task's steps.

    Steps of low entropy are decided already. They make up most of what a trained agent does, and their gradients only
    sharpen what needs no sharpening; exploration happens at the others (DART keeps 80 %).
    """
    return entropies >= torch.quantile(entropies, 1.0 - keep)


def objective(
    args: Args, logprobs: Tensor, old: Tensor, behaviour: Tensor, advantage: Tensor, kept: Tensor
) -> tuple[Tensor, Tensor]:
    """DART's loss of a batch, to be minimised, and the importance weights. Everything is (N,), one number per step.

    Three policies: mu sampled (recorded with the step), pi_old is the learner's before this batch, pi is changed now.

        L = - 1/N sum_t 1_t * w_t * min(rho_t A_t, clip(rho_t, 1 - eps, 1 + eps_high) A_t)

        w   = min(pi_old / mu, C)   how much a step of older weights says about today's policy. Unbounded, one step that
                                    has become likely would outweigh all others: truncated importance sampling (TIS).
                                    It is a weight, and has no gradient.
        rho = pi / pi_old           1 at first; its gradient is that of log pi. The clip ends a step's say once pi has
                                    moved by epsilon in the direction that its advantage asks for (PPO). The upper end
                                    is further away, so that what is unlikely may become likely (DAPO).
    """
    weight = (old - behaviour).exp().clamp(max=args.truncation)
    rho = (logprobs - old).exp()
    clipped = rho.clamp(1 - args.epsilon, 1 + args.epsilon_high)
    gain = torch.minimum(rho * advantage, clipped * advantage)
    return -(kept * weight * gain).mean(), weight


def update(args: Args, policy: Policy, optimizer: torch.optim.Optimizer, groups: list[Group]) -> dict[str, float]:
    """One batch of N steps: pi_old and the selection once, then `epochs` steps of the optimizer."""
    steps = [step for group in groups for episode in group for step in episode.steps]
    screens, words = collate([(step.screen, step.words) for step in steps])
    cells = torch.tensor([step.cell for step in steps])
    behaviour = torch.tensor([step.logprob for step in steps])
    advantage = torch.tensor([own for group in groups for own in advantages(group)])

    def forward() -> tuple[Tensor, Tensor]:
        """(N,) log-probabilities of what was clicked, and entropies."""
        log_p = policy(screens, words)
        return log_p.gather(1, cells[:, None]).squeeze(1), -(log_p.exp() * log_p).sum(1)

    with torch.no_grad():
        old, entropies = forward()
    kept = select(entropies, args.keep)
    for _ in range(args.epochs):
        loss, weight = objective(args, forward()[0], old, behaviour, advantage, kept)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
    share = {"entropy": entropies, "kept": kept.float(), "weight": weight}  # a weight of 1: pi_old is mu
    return {name: float(values.mean()) for name, values in share.items()}


def fresh_groups(args: Args, buffer: queue.Queue[Group], version: int) -> tuple[list[Group], int]:
    """Groups for one update, and how many were too old: any step of theirs by weights more than so many versions ago.

    Groups without a difference in their rewards are left out as well: they would only dilute the mean.
    """
    groups, expired = [], 0
    while len(groups) < args.groups_per_update:
        group = buffer.get(timeout=120)
        if min(step.version for episode in group for step in episode.steps) < version - args.max_staleness:
            expired += 1
        elif len({episode.reward for episode in group}) > 1:
            groups.append(group)
    return groups, expired


def success(args: Args, policy: Policy) -> float:
    """Share of held-out screens on which the policy does what it is asked."""
    seeds = iter(range(args.test_episodes))
    return float(np.mean([episode.reward for episode in play(args, Published.of(0, policy), seeds, seed=0)]))


def train(args: Args) -> tuple[float, float]:
    """Success on held-out screens before and after."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # the other core plays
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=args.learning_rate)
    before = success(args, policy)
    print(f"before: {before:.0%} of {args.test_episodes} held-out screens")

    published, buffer, stop = Published.of(0, policy), queue.Queue[Group](), threading.Event()
    threading.Thread(target=rollouts, args=(args, published, buffer, stop), name="rollouts").start()
    started, expired = time.monotonic(), 0
    try:
        for version in range(1, args.updates + 1):
            groups, late = fresh_groups(args, buffer, version - 1)
            expired += late
            numbers = update(args, policy, optimizer, groups)
            if version % args.publish_every == 0:
                published.newest = Published.of(version, policy).newest
            seconds = time.monotonic() - started
            if version % 10 == 0:
                ages = [version - 1 - step.version for group in groups for episode in group for step in episode.steps]
                numbers["reward"] = float(np.mean([episode.reward for group in groups for episode in group]))
                said = "  ".join(f"{name} {value:.2f}" for name, value in numbers.items())
                lag = f"staleness {np.mean(ages):.1f} (max {max(ages)}, {expired} groups expired)"
                print(f"update {version:4d}  {seconds:5.1f} s  {said}  {lag}", flush=True)
            if seconds > args.seconds:
                break
    finally:
        stop.set()
    after = success(args, policy)
    print(f"after:  {after:.0%} of {args.test_episodes} held-out screens")
    return before, after


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in vars(Args()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    train(Args(**vars(parser.parse_args())))
