"""Shared utilities: files, disks, arguments, memory, the machine, Equation 3 and the style of figures.

This package imports nothing of the model, except for the class from which its input errors derive.
"""
