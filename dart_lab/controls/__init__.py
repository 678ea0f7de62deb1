"""Controls: what a run is compared with to see that it learned from its rewards."""
