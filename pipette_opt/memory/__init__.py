"""Peak memory per pipeline stage, predicted by a small network, with a bound on the out-of-memory risk."""
