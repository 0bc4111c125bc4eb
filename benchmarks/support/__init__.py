"""What the commands of benchmarks/ share."""
