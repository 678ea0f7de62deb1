"""Judges: rewards of an episode beside its evaluator's score, and how far they agree with it."""
