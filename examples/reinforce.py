"""REINFORCE with a group baseline in sixty lines, on leases of recorded rollouts: a trainer of your own.

python examples/reinforce.py runs/NAME MODEL_DIR OUT_DIR           # on its own, on what a run has recorded
dart-train run CONFIG --set trainer.kind=reinforce:Reinforce      # in a run, from this directory
"""

import sys
from pathlib import Path

import torch

from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_train.data import LeasedGroups, Leasing
from dart_train.trainer.batches.collator import Collator, ImageCache, Sample
from dart_train.trainer.grpo_trainer import load_model
from dart_train.trainer.policy_logprobs import response_logprobs
from dart_train.trainer.weights.checkpoint import write_model


class Reinforce:
    """Loss: -(reward - mean of its group) * log pi(step), mean over steps."""

    def __init__(self, model_dir, data: Leasing, learning_rate: float = 1e-5):
        self.model_dir, self.model, self.tokens = model_dir, load_model(model_dir), ModelTokens.load(model_dir)
        self.collate = Collator(self.tokens, VisionSpec.from_dir(model_dir), ImageCache(data.load_image))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=learning_rate, weight_decay=0.0)

    def train(self, groups: LeasedGroups) -> dict[str, float]:
        """One update on a lease."""
        samples, rewards = [], []
        for group in groups:
            baseline = sum(group.rewards) / len(group.rewards)
            for trajectory, reward in zip(group.trajectories, group.rewards, strict=True):
                samples += [Sample.from_step(step, advantage=reward - baseline) for step in trajectory.steps]
                rewards.append(reward)
        loss = 0.0
        for batch in self.collate.micro_batches(samples, max_tokens=8192):
            logprobs, _ = response_logprobs(self.model, batch, self.tokens.suppressed_ids)  # (steps, tokens)
            part = -(batch.advantages[:, None] * logprobs).sum() / len(samples)
            part.backward()
            loss += part.item()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {"loss": loss, "reward": sum(rewards) / len(rewards), "samples": float(len(samples))}

    def save(self, path) -> None:
        """A directory that engines load."""
        write_model(self.model, path, self.model_dir)


if __name__ == "__main__":
    run, model, out = map(Path, sys.argv[1:])
    with Leasing.open(f"sqlite:///{run}/data/dart.sqlite", run / "data", run.name) as data:
        trainer = Reinforce(model, data)
        for leased in data.leases("reinforce", groups=2, stop=lambda: data.ready()[0] < 2):
            with leased:  # kept alive by heartbeats; given back if this fails
                print(trainer.train(leased))
                leased.commit(version=0)
        trainer.save(out)
