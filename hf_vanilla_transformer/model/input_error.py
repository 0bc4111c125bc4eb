"""The error for inputs, settings and weights that the model cannot use."""


class InputError(ValueError):
    """What was given, what is allowed, and what to do; the command line prints it in one line."""
