"""One file per method, each readable from top to bottom."""
