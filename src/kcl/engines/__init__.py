"""Where groups of runs are done: processes on this machine, a Ray cluster, Slurm. One dispatcher, one writer."""
