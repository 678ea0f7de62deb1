"""What can be known to go wrong before the first desktop starts, as one list: for `run`, `--dry-run` and `plan`."""
