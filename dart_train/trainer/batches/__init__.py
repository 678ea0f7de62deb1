"""Leased groups -> tensors: samples, rows, images, optimizer batches, and the lease that they come from."""
