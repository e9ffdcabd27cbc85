"""Models that the product is given: their weights and cards, and the code that trains them."""
