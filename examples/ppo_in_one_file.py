"""PPO in one file, as CleanRL writes it, on a drawn desktop: buttons are clicked in the order that a sentence asks for.

The screen shows four buttons, and the task is "Click the blue button 'Yes', then the red button 'OK'.": one wrong click
ends the episode without a reward. Everything is Gymnasium's: environments are made by `gym.make`, wrapped, and put into
a `SyncVectorEnv`. Actions are cells of a grid, and masks leave out those in which nothing is drawn.

    pip install dart-gui torch ./integrations/gymnasium     # which has the wrappers
    python examples/ppo_in_one_file.py                      # two minutes of one core
    python examples/ppo_in_one_file.py --video videos       # and records episodes, which needs gymnasium[other]

Differences from CleanRL's `ppo.py`: observations are a dict of a screen and a sentence; masked logits; and episodes
that the environment lost (`env_fault`) are left out of the loss, since they say nothing about the policy.
"""

from __future__ import annotations

import argparse
import time
import zlib
from collections import deque
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from dart_gym_wrappers import DiscreteClicks, ResizeScreenshot
from torch import Tensor, nn
from torch.distributions import Categorical

ROWS, COLUMNS = 3, 2  # of the grid of clicks
SCREEN = (56, 42)  # what the network sees of 224 x 168 pixels
LENGTH, VOCABULARY = 16, 256  # words of a sentence, and how many there are: each is one of so many, by a hash


@dataclass
class Args:
    """What may be set on the command line."""

    task: str = "fake/two-steps"
    seed: int = 1
    total_steps: int = 20_480  # over all environments
    num_envs: int = 8
    num_steps: int = 64  # of each environment between two updates
    learning_rate: float = 1e-3
    gamma: float = 0.99
    gae_lambda: float = 0.95
    num_minibatches: int = 4
    update_epochs: int = 4
    clip_coef: float = 0.2
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    test_episodes: int = 100
    video: str = ""  # a folder for films of every 500th episode of the first environment


def make_env(args: Args, index: int) -> Any:
    """A function that makes one environment: Gymnasium's wrappers and ours, as in CleanRL."""

    def thunk() -> gym.Env:
        filmed = bool(args.video) and index == 0
        env = gym.make("dart_gym:DartGym/Desktop-v0", task=args.task, render_mode="rgb_array" if filmed else None)
        if filmed:
            env = gym.wrappers.RecordVideo(env, args.video, episode_trigger=lambda number: number % 500 == 0)
        env = gym.wrappers.RecordEpisodeStatistics(env)
        return DiscreteClicks(ResizeScreenshot(env, SCREEN), ROWS, COLUMNS, blank=False)

    return thunk


def look(observation: dict[str, Any], envs: gym.vector.VectorEnv) -> tuple[Tensor, Tensor, Tensor]:
    """What the agent sees: screens (N, 3, 56, 42) in [-1, 1], words (N, 16), and which cells it may click (N, 6)."""
    words = torch.zeros((len(observation["instruction"]), LENGTH), dtype=torch.int64)
    for row, sentence in enumerate(observation["instruction"]):
        numbers = [1 + zlib.crc32(word.encode()) % (VOCABULARY - 1) for word in sentence.lower().split()[:LENGTH]]
        words[row, : len(numbers)] = torch.tensor(numbers)
    screens = torch.from_numpy(observation["screenshot"]).permute(0, 3, 1, 2) / 127.5 - 1
    return screens, words, torch.from_numpy(np.stack(envs.call("action_masks")))


class Agent(nn.Module):
    """How well does what is in each cell fit what the sentence asks for next? And how well will it end?"""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.see = nn.Sequential(
            nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(32, width, 3, stride=2, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d((ROWS, COLUMNS)), nn.Flatten(2),
        )  # fmt: skip
        self.read = nn.Sequential(nn.Embedding(VOCABULARY, 16), nn.Flatten())
        self.actor = nn.Sequential(nn.Linear(LENGTH * 16 + width, 128), nn.ReLU(), nn.Linear(128, width))
        self.critic = nn.Sequential(nn.Linear(LENGTH * 16 + width, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, screens: Tensor, words: Tensor, masks: Tensor) -> tuple[Categorical, Tensor]:
        """A distribution over the cells, and the value (N,)."""
        cells = self.see(screens)  # (N, width, 6)
        known = torch.cat([self.read(words), cells.amax(2)], 1)  # a button that was clicked has a thicker border
        logits = (self.actor(known)[:, :, None] * cells).sum(1)
        return Categorical(logits=logits.masked_fill(~masks, -1e9)), self.critic(known).squeeze(1)


@torch.no_grad()
def success(args: Args, agent: Agent) -> float:
    """Share of episodes on screens of other seeds that end with a score of 1, the likeliest cell clicked."""
    envs = gym.vector.SyncVectorEnv([make_env(Args(task=args.task), 0)])
    scores = []
    for seed in range(args.test_episodes):
        observation, _ = envs.reset(seed=seed)
        ended = False
        while not ended:
            cell = agent(*look(observation, envs))[0].probs.argmax(1)
            observation, _, terminated, truncated, info = envs.step(cell.numpy())
            ended = bool(terminated[0] or truncated[0])
        scores.append(float(info["score"][0]))
    envs.close()
    return float(np.nanmean(scores))  # a lost episode's score is nan


def learn(args: Args, envs: gym.vector.VectorEnv, agent: Agent) -> None:
    """PPO: rollouts of `num_steps`, generalized advantages, clipped updates."""
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    returns: deque[float] = deque(maxlen=400)
    started, updates = time.monotonic(), args.total_steps // (args.num_envs * args.num_steps)
    seen = look(envs.reset(seed=1_000_000 * args.seed)[0], envs)
    for update in range(1, updates + 1):
        optimizer.param_groups[0]["lr"] = args.learning_rate * (1 - (update - 1) / updates)
        shape = (args.num_steps, args.num_envs)
        actions, logprobs = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape)
        rewards, ends, values = torch.zeros(shape), torch.zeros(shape), torch.zeros(shape)
        kept, begun = torch.ones(shape, dtype=torch.bool), [0] * args.num_envs
        screens, words, masks = ([] for _ in range(3))
        for step in range(args.num_steps):
            for rows, part in zip((screens, words, masks), seen, strict=True):
                rows.append(part)
            with torch.no_grad():
                distribution, values[step] = agent(*seen)
            actions[step] = distribution.sample()
            logprobs[step] = distribution.log_prob(actions[step])
            observation, reward, terminated, truncated, infos = envs.step(actions[step].numpy())
            rewards[step] = torch.as_tensor(reward)
            ends[step] = torch.as_tensor(terminated | truncated)
            for env in np.flatnonzero(terminated | truncated):
                if infos["final_info"]["env_fault"][env]:
                    kept[begun[env] : step + 1, env] = False
                else:
                    returns.append(float(infos["final_info"]["episode"]["r"][env]))
                begun[env] = step + 1
            seen = look(observation, envs)

        with torch.no_grad():
            following, advantages, last = agent(*seen)[1], torch.zeros(shape), torch.zeros(args.num_envs)
        for step in reversed(range(args.num_steps)):
            going_on = 1 - ends[step]
            delta = rewards[step] + args.gamma * following * going_on - values[step]
            advantages[step] = last = delta + args.gamma * args.gae_lambda * going_on * last
            following = values[step]

        inputs = [torch.cat(rows) for rows in (screens, words, masks)]
        flat = [part.flatten() for part in (actions, logprobs, advantages, advantages + values)]
        rows_kept = torch.nonzero(kept.flatten()).squeeze(1)
        for _ in range(args.update_epochs):
            for rows in rows_kept[torch.randperm(len(rows_kept))].chunk(args.num_minibatches):
                action, old, advantage, target = (part[rows] for part in flat)
                distribution, value = agent(*(part[rows] for part in inputs))
                ratio = (distribution.log_prob(action) - old).exp()
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
                policy_loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
                loss = policy_loss + args.vf_coef * 0.5 * (value - target).square().mean()
                loss = loss - args.ent_coef * distribution.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()
        if update % 10 == 0 or update == updates:
            steps, seconds = update * args.num_envs * args.num_steps, time.monotonic() - started
            print(f"{steps:6d} steps  {seconds:4.0f} s  mean return of 400 episodes {np.mean(returns):.2f}", flush=True)


def main(args: Args) -> float:
    """Learn, and tell the success on screens that were not learned on."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    agent = Agent()
    modes = gym.vector.AutoresetMode
    thunks = [make_env(args, index) for index in range(args.num_envs)]
    envs = gym.vector.SyncVectorEnv(thunks, autoreset_mode=modes.SAME_STEP)
    learn(args, envs, agent)
    envs.close()
    share = success(args, agent)
    print(f"success {share:.0%} on {args.test_episodes} other screens")
    return share


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in vars(Args()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    main(Args(**vars(parser.parse_args())))
