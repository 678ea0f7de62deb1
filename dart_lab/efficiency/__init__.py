"""The comparison of coupled and decoupled runs, simulated and on real desktops: `dart-train bench efficiency`."""
