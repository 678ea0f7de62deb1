"""Alembic migrations of the data manager's schema, from its first version on.

Invariants:
    - Running every migration from nothing gives what `schema.metadata` describes; a test compares the two.
    - A migration that was interrupted can be run again: MySQL commits each statement by itself.

`dart-train data init` runs them. To add one: change `schema.py`, set its `REVISION`, write `versions/vNNNN_noun.py`.
"""
