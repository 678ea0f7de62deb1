"""`dart-train check-gpu`: check a machine's GPUs with the code of a run, without a configuration."""
