"""Solved again for a plan that is there: on other hosts, or to prove its certificate once more."""
