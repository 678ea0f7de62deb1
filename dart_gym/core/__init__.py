"""The vocabulary that everything else speaks: typed actions, keys, results of an episode, errors.

Values and exceptions only: nothing here starts a process, opens a file or imports another room. Everything here may be
imported from anywhere; users find the same names in `dart_gym`.
"""
