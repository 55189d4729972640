"""Where the criteria stand, and from which seed on runs are judged by them."""

from pathlib import Path

CRITERIA = Path(__file__).with_name("criteria.yaml")
# Seeds below explore.
FIRST_JUDGING_SEED = 100
