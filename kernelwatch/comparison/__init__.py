"""Compare two commits by measuring them in turns, and find the commit that caused a change."""
