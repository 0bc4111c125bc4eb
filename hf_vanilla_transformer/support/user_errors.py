"""Errors for users: the command line prints their message in one line, and any other error with its traceback."""


class UserError(Exception):
    """What a user gave, or the machine lacks; the message says what was given, what is allowed, and what to do."""


class InputError(UserError, ValueError):
    """An argument or a file that cannot be used."""


class InputFileError(UserError, OSError):
    """A file or a folder that cannot be read or written."""


class MissingExtraError(UserError, ImportError):
    """An optional dependency that is not installed."""
