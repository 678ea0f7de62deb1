"""Playing rollouts on desktops: the workers, and the path of each rollout from its start to its recording."""
