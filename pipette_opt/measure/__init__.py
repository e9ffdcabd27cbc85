"""Measuring the machines at hand: links between hosts, layers on a device; imports torch, inside functions."""
