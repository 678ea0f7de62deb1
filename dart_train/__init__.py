"""The decoupled trainer of DART: rollout service, data manager and trainer beside the environment cluster."""

from dart_gym.utils.version import VERSION as __version__  # noqa: F401
