"""A strategy for each layer: Galvatron's search on its own published costs, and our model on the same costs."""
