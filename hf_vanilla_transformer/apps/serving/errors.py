"""Why a request gets no translation, in one sentence; `http/error_responses.py` has the status of each kind."""


class RequestError(Exception):
    """Raised for a request that gets no translation."""


class TooMuchError(RequestError):
    """Too many or too long texts, or too much work."""


class BusyError(RequestError):
    """Too many requests at the moment, or one that took too long; to be tried again after some seconds."""

    def __init__(self, reason: str, retry_seconds: int):
        super().__init__(reason)
        self.retry_seconds = retry_seconds


class UntranslatableError(RequestError):
    """A text or a setting that the model cannot take."""


class OtherLanguageError(RequestError):
    """A language that is not the model's."""
