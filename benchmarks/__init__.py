"""Commands that time and compare, run by hand from the repository's root: `python -m benchmarks.training --help`."""
