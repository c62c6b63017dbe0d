"""Saved results as tables, figures and one page. Knows records, not methods."""
