"""Back-tests of memory. Nothing of the product imports it."""
