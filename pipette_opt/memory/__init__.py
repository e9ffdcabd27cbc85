"""Does it fit: peak memory per pipeline stage, predicted by a small network, with a bound on the risk."""
