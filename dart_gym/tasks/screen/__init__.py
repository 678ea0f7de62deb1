"""What a task reads off a desktop while it prepares: windows, idle programs, readiness."""
