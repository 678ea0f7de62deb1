"""Alembic migrations of the data manager's schema, from its first release on.

Invariants:
    - Running every migration from nothing gives what `schema.metadata` describes; a test compares the two.
    - A migration that was interrupted can be run again: MySQL commits each statement by itself.

`dart-train data check --migrate` runs them. To add one: change `schema.py`, set its `REVISION` to the package's
version, write `versions/vX_Y_Z_noun.py`.
"""
