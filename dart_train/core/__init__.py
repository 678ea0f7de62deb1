"""What all processes of a run share: errors, metrics as lines of JSON, fingerprints of weights, availability."""
