"""OSWorld's set-up steps, by what they act on: commands, files, windows, the browser."""
