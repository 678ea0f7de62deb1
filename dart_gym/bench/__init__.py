"""Benchmarks: each prints a table for people and can write one JSON object for `docs/performance.md`."""
