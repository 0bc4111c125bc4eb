"""Shared utilities: files, disks, arguments, recipes, memory, the machine, Equation 3 and the style of figures.

From the model, this package imports only the base class of its input errors.
"""
