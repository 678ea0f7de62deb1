"""Whether engine and trainer agree: log-probabilities of one recorded conversation by everybody, and their gaps."""
