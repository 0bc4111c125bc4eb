"""Runs that are killed at random moments, and runs whose disk fails, each followed by a resume."""
