"""The Falcon-H1 hybrid, its tensor addresses and its kernels.

Nothing is imported here, so that the planner can read addresses without loading torch.
"""
