"""Find where series changed, and what is to blame."""
