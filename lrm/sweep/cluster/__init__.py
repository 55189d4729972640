"""Sweeps on a cluster: jobs that submitit hands to SLURM, each of which is a sweep of its own."""
