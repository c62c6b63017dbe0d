"""Choosing settings without the test data: the space, the protocol and the search."""
