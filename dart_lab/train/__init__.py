"""Benchmarks of the trainer's parts: `dart-train bench ...`."""
