"""Controls: comparisons that show whether a run learned from its rewards."""
