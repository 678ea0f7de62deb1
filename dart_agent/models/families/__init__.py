"""Differences between families of models: one file per family, and a table of them (`family_table`). No torch."""
