"""Tensors → a stream of tasks."""
