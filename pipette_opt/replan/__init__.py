"""Searches that start from an existing plan: for changed hosts or jobs, or to prove its certificate again."""
