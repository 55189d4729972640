"""Search for the presets of steepest_optimizers and steepest_width; rules: config.yaml."""

from lrm.sweep.tuning.command import main

if __name__ == "__main__":
    main(__file__)
