"""The weights on their ranks: adapters, sharding, published versions, checkpoints, fingerprints."""
