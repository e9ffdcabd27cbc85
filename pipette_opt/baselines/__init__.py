"""Baseline searches on the solver's problem: AMP, Varuna, Megatron's rule; ``compare`` runs all of them."""
