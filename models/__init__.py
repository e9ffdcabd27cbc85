"""Trained models that the package ships: their weights and model cards, and the code that trains them."""
