"""What each subcommand of `dart-train` does once its configuration is read: one module per process of a run."""
