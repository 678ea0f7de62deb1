"""Benchmarks of desktops and the environment cluster: `dart-gym bench ...`."""
