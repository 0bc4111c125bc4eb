"""Shared utilities, for example for writing files safely, checking arguments, reading recipes and drawing figures.

From the model, this package imports only the base class of its input errors.
"""
