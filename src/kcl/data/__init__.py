"""Readers that turn files into a `Dataset`: where data lies, how it is fetched, and how it is known to be whole."""
