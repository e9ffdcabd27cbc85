"""Attacks on the product: hostile files, kills, long and parallel runs."""
