"""The rollout service: deals out rollouts to desktops, plays them with engine replicas, records trajectories."""
