"""Read recorded results."""
