"""Exceptions for requests that the server cannot translate.

`http/error_responses.py` maps each class to an HTTP status.
"""


class RequestError(Exception):
    """Base class of the exceptions in this module. The message is one sentence, which is sent to the client."""


class TooMuchError(RequestError):
    """The request has too many texts, one of its texts is too long, or it is too expensive to translate."""


class BusyError(RequestError):
    """The server is full, or it did not finish this request in time.

    Args:
        reason (`str`): the sentence that is sent to the client.
        retry_seconds (`int`): the number of seconds after which the client should try again.
    """

    def __init__(self, reason: str, retry_seconds: int):
        super().__init__(reason)
        self.retry_seconds = retry_seconds


class UntranslatableError(RequestError):
    """The model cannot translate one of the texts, or does not support one of the settings."""


class OtherLanguageError(RequestError):
    """The request names a language that the model does not translate."""
