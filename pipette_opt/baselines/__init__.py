"""Baselines: Pipette's annealing, AMP, Varuna, and Megatron's rule of thumb; ``compare`` runs them all."""
