"""The hybrid model: its blocks, addresses of tensors, initial values, operations and kernels.

Nothing is imported here, so that the planner can read addresses without loading torch.
"""
