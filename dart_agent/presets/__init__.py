"""Presets: a model's published behaviour under one name, one file a family. `get_preset(name)` finds one."""

from dart_agent.presets.preset_registry import get_preset, presets

__all__ = ["get_preset", "presets"]
