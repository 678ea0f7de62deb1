"""What the trainer's parts are worth, measured: `dart-train bench`."""
