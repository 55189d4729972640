"""Planted worlds of each experiment, a package so that file names may repeat those of tests/."""
