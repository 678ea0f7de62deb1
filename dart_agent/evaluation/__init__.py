"""Evaluation: episodes on disk, their statistics, and the comparison of two policies."""
