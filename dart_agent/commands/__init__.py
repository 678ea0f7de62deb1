"""The command line `dart-agent`: play, score, compare, look, export. Imported by nobody."""
