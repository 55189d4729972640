"""Rescalings that leave the model's output as it is, derived and found."""
