"""Certified suites: each task is shown to score 0 for nothing and 1 for its solution, again and again, leaving nothing.

`certify_run` plays, `certificate` judges and writes what a suite carries. Imported by commands only.
"""
