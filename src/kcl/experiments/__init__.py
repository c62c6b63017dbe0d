"""Sets of runs: what to run, how runs are grouped, trained and recorded."""
