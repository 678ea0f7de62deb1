"""Benchmarks, run from a checkout as `dart-gym bench`, `dart-agent bench` and `dart-train bench`. Not in the wheel.

Each prints a table for people and, with `--json FILE`, one object of named numbers for `docs/results/performance.md`.
"""
