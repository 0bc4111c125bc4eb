"""Find what a translation must contain unchanged: placeholders of software, URLs and e-mail addresses."""

import re


# Stands for an element in a text that is searched for placeholders.
ELEMENT = "\ufffc"
# {{name}}, ${x}, {0}, %(n)d, %s, %1$s, URLs, e-mail addresses.
_PLACEHOLDER = re.compile(
    rf"\{{\{{[^{{}}]*\}}\}}|\$?\{{[\w.:-]*\}}|%\(\w+\)[a-z]|%(?:\d+\$)?[sdfiu](?!\w)"
    rf"|\b(?:(?:https?|ftp)://|www\.)[^\s<>\"{ELEMENT}]*[\w/]"
    r"|(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}"
)


def find_placeholders(text: str) -> list[tuple[int, int]]:
    """Find the placeholders of a text; returns where they begin and end. `ELEMENT` stands for elements inside."""
    return [match.span() for match in _PLACEHOLDER.finditer(text)]
