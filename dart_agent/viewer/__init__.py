"""Look at a trajectory: one HTML page that needs nothing but a browser."""
