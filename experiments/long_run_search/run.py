"""Search for the base learning rates of long_run; the rules stand in config.yaml."""

from lrm.sweep.tuning.command import main

if __name__ == "__main__":
    main(__file__)
