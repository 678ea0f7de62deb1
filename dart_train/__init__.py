"""The decoupled trainer of DART: rollout service, data manager and trainer beside the environment cluster."""
