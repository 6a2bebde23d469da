"""Who runs the steps of a study: this machine, Ray or SLURM."""
