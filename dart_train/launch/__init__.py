"""Whole runs: the phases one after the other, each in processes of its own (`dart-train run`)."""
