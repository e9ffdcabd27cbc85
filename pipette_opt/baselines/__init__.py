"""Baseline searches on the solver's problem: AMP, Varuna, and Megatron's rule of thumb; ``compare`` runs them all."""
