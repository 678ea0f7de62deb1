"""The command line `dart-gym`: serve desktops, list and check tasks, look at the machine. Imported by nobody."""
