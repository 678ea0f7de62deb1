"""The commands `dart-agent bench ...`."""
