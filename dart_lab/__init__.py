"""The laboratory: tools with which the project studies itself. In a checkout only, never in the wheel.

It plugs into the product by the entry points in `dart_lab.dist-info`, which are found where the checkout is, without an
installation. The product does not import it. Each `bench` command prints a table for people and, with `--json FILE`,
writes one object of named numbers for `docs/results/performance.md`.
"""
