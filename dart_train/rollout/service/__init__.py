"""The rollout service as a whole: scheduler, fleet and workers together, with its HTTP pages."""
