"""Search for the tuned presets of steepest_optimizers and steepest_width; the rules stand in config.yaml."""

from lrm.sweep.tuning.command import main

if __name__ == "__main__":
    main(__file__)
