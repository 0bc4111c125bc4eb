"""English names of languages, for `/languages`."""

from babel import Locale, UnknownLocaleError


def english_name(code: str) -> str:
    """The English name of a language; its code, if it is unknown."""
    try:
        return Locale.parse(code.replace("-", "_")).get_display_name("en") or code
    except (UnknownLocaleError, ValueError):
        return code
