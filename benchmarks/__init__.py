"""Programs that judge the product, run from a checkout as ``python -m benchmarks.NAME``; the product imports none."""
