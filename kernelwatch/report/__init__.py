"""Show recorded results and comparisons, as tables in the terminal or as Markdown."""
