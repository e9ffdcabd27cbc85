"""Research on the product: baselines, placement benchmark, back-tests. Nothing of the product imports it."""
