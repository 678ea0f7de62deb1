"""The subcommands of `dart-train`."""
