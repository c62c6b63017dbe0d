"""Where groups of runs are done: processes on this machine, a Ray cluster, Slurm. One dispatcher, one writer."""

RETRIES = 2
"""Attempts beyond the first for a group that fails. Here, so that the command line knows it without loading PyTorch."""
