"""Presets: models' published behaviour by name, one YAML file each, their long prompts in `texts`."""

from dart_agent.presets.preset import get_preset, presets

__all__ = ["get_preset", "presets"]
