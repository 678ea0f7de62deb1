"""Many desktops without a barrier: whoever is ready gets its next action, nobody waits for the slowest.

Run it:

    python examples/vector_send_recv.py                    # four Chromium desktops
    python examples/vector_send_recv.py fake/click-button  # drawn desktops
"""

import argparse
import time

import gymnasium as gym
import numpy as np

import dart_gym  # noqa: F401  registers the environments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", default="miniwob/click-test")
    parser.add_argument("--envs", type=int, default=4)
    parser.add_argument("--episodes", type=int, default=40)
    options = parser.parse_args()

    envs = gym.make_vec("DartGym/Desktop-v0", num_envs=options.envs, task=options.task)
    space = envs.single_action_space
    space.seed(0)
    started, scores, per_env = time.perf_counter(), [], [0] * options.envs
    envs.async_reset()
    while len(scores) < options.episodes:
        for transition in envs.recv(min_ready=1):  # in the order of arrival
            env_id = transition.env_id
            if transition.terminated or transition.truncated:
                if not transition.info["env_fault"]:  # a broken desktop is no score; its reset gets a fresh one
                    scores.append(transition.info["score"])
                    per_env[env_id] += 1
                envs.async_reset([env_id])
            else:
                envs.send([space.sample()], [env_id])
    envs.abandon(range(options.envs))  # what is still under way
    envs.close()
    seconds = time.perf_counter() - started
    print(f"{len(scores)} episodes in {seconds:.1f} s, per desktop {per_env}, mean score {np.mean(scores):.2f}")


if __name__ == "__main__":
    main()
