"""Does it fit: peak memory per pipeline stage, traced, predicted by a small network, and with a bound on the risk."""
