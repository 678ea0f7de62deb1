"""Log-probabilities of responses under a model, with the least work."""
