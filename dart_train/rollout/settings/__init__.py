"""The configuration of the rollout service. Imported by every room of it; imports none."""
