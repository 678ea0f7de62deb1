"""Benchmarks of parsers and grounders: `dart-agent bench ...`."""
