"""Benchmarks of the trainer's parts, and the comparison of coupled and decoupled runs: `dart-train bench ...`."""
