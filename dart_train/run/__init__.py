"""One run on one machine: its directory and lock, and the supervisor that keeps its processes going."""
