"""Which data is made and trained on: pure decisions, and the experience pool."""
