"""Where the criteria stand."""

from pathlib import Path

CRITERIA = Path(__file__).with_name("criteria.yaml")
