"""Plug-ins of DART-Gym, one file each; `pyproject.toml` gives each of them its name."""
