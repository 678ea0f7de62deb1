"""The rollout service: scheduler, fleet and workers together, with its HTTP pages."""
