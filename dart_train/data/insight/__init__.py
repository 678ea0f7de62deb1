"""How a run's data stands, and why a trainer gets nothing: statistics, status, diagnosis."""
