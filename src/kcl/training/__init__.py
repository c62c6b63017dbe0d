"""Runs of a method over a stream: the loop, the randomness, the evaluation."""
