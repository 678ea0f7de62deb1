"""The state of a run's data, and why a trainer gets nothing: statistics, status, diagnosis."""
