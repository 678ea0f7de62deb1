"""How far apart the log-probabilities of one token may be, in nats: for `dart-train parity` and for engines.

One source: with a smaller bound for a running engine than parity has found, a sound engine would be taken for wrong.
"""

EXACT, FLOAT32, HALF = 1e-5, 1e-3, 0.3
"""Two orders of the same sums in float32: of a few layers, of the many of a large model; in bfloat16, whose eight bits
a large model's layers add up to some tenths of a nat for single tokens."""
HALF_MEAN = 0.05
"""On average over tokens, in bfloat16: more is no rounding, whatever the largest is."""
