"""Hyperparameters found by runs: a search by stages, each run a trial that is logged.

``points`` says what a point of the search is and which settings it stands for, ``stages`` decides
what to try next, ``trials`` are the runs, ``command`` brings them together. The rules stand in the
experiment's YAML (``lrm.plan.search``).
"""
