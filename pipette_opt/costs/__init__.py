"""Costs of single operations (compute, messages, collectives), and all costs of a placed configuration."""
