"""Prediction of the peak GPU memory of each stage: a formula that a network corrects, with a bound on the risk."""
