"""The protocol of an engine: token ids and images in, token ids and log-probabilities out. Imported by all engines."""
