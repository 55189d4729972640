"""Train this experiment's runs; what they are stands in config.yaml, what came out in README.md."""

from lrm.sweep.command import main

if __name__ == "__main__":
    main(__file__)
