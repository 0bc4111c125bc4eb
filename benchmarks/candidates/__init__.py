"""Faster computations for GPUs that the package does not use.

`python -m benchmarks.gpu_candidates` checks and times them. A candidate moves into the package when it makes a training
step at least 3 % faster and passes its check, and is deleted otherwise. Each one is a function of plain arguments.
"""
