"""Laws of kernels, collectives and whole jobs beside public measurements of them."""
