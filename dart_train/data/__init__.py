"""The data manager: every trajectory and checkpoint of a run, in SQL and files."""
