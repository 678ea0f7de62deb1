"""The trainer's configuration, checked. Imports nothing of the trainer but its pure losses."""
