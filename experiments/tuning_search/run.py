"""Search for the tuned presets of tuning_ablation; the rules stand in config.yaml."""

from lrm.sweep.tuning.command import main

if __name__ == "__main__":
    main(__file__)
