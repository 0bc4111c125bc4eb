"""Reasons why a request gets no translation. `http/error_responses.py` has the HTTP status for each class."""


class RequestError(Exception):
    """A request that gets no translation. The message is one sentence for the client."""


class TooMuchError(RequestError):
    """The request has too many texts, texts that are too long, or too much work."""


class BusyError(RequestError):
    """The server has too many requests, or took too long for this one.

    Args:
        reason (`str`): the sentence for the client.
        retry_seconds (`int`): the seconds after which the client should try again.
    """

    def __init__(self, reason: str, retry_seconds: int):
        super().__init__(reason)
        self.retry_seconds = retry_seconds


class UntranslatableError(RequestError):
    """The model cannot translate one of the texts, or does not support one of the settings."""


class OtherLanguageError(RequestError):
    """The request names a language that the model does not translate."""
