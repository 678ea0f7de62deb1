"""Imports tasks from elsewhere into suites of DART-Gym: directories, archives, tables, URLs, in others' formats."""
