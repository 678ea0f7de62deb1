"""Benchmarks of parsers: `dart-agent bench ...`."""
