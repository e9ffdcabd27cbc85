"""
What runs on torch, imported inside functions.

The machines at hand, measured: links between hosts, layers on a device. ``memory/``: what predictions of memory are
made from.
"""
