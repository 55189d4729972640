"""Train the projector_placement experiment; see README.md here."""

from lrm.experiment import main

if __name__ == "__main__":
    main(__file__)
