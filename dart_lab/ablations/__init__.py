"""Ablations: runs that differ in one switch each, as a table and a picture: `dart-train ablate`."""
