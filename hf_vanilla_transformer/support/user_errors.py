"""Errors for users: the command line prints their message in one line, and any other error with its traceback."""


class UserError(Exception):
    """What a user gave, or the machine lacks; the message says what was given, what is allowed, and what to do."""


class InputError(UserError, ValueError):
    """An argument, a file or a model that cannot be used."""
