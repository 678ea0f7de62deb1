"""The Gymnasium loop: random actions on one desktop.

Run it:

    python examples/random_agent.py                        # MiniWoB++ in Chromium on a real desktop
    python examples/random_agent.py fake/two-steps         # a drawn desktop: no display, milliseconds an episode
"""

import argparse

import gymnasium as gym

import dart_gym  # noqa: F401  registers the environments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", default="miniwob/click-test")
    parser.add_argument("--episodes", type=int, default=3)
    options = parser.parse_args()

    env = gym.make("DartGym/Desktop-v0", task=options.task)
    env.action_space.seed(0)
    for seed in range(options.episodes):
        observation, info = env.reset(seed=seed)
        print(f"seed {seed}: {observation['instruction']}")
        ended = False
        while not ended:
            action = env.action_space.sample()
            observation, reward, terminated, truncated, info = env.step(action)
            ended = terminated or truncated
            print(f"  {action}  {info['action_error']}")
        print(f"  {info['terminal']} after {info['step_index']} steps, score {info['score']:g}")
    env.close()


if __name__ == "__main__":
    main()
