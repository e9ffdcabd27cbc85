"""Prediction of the peak GPU memory of each pipeline stage by a small network, with a bound on the risk."""
