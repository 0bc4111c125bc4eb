"""Find what a translation must contain unchanged: placeholders of software, URLs, e-mail addresses, and tags."""

import re


# Stands for an element in a text that is searched for placeholders.
ELEMENT = "\ufffc"
# Formats of arguments such as {0,number} and {count, plural, one {# file} other {# files}}, which have braces inside.
_FORMATS = "number|date|time|spellout|ordinal|duration|choice|plural|select|selectordinal"
# The value of an attribute, and attributes that have none.
_VALUE = r"""\s*+=\s*+(?:"[^"<>]*+"|'[^'<>]*+'|[^\s"'<>=]++)"""
_VALUELESS = "allowfullscreen|async|autoplay|checked|controls|defer|disabled|hidden|loop|multiple|muted|nowrap|open"
_VALUELESS += "|readonly|required|reversed|selected"
# No pattern crosses the place where another match could begin, so that searching takes a time linear in the text.
_PLACEHOLDER = re.compile(
    rf"""
    # {{{{name}}}} and {{{{ user.name | upper }}}}, {{% if user %}}, {{\i1}} of subtitles
    \{{\{{[^{{}}]*+\}}\}} | \{{%[^{{}}]*\}} | \{{\\[^{{}}]*+\}}
    # An argument with a format; only its beginning.
    | (?P<formatted>(?:[$\#]|(?<![\d%])%)?\{{\s*+[\w.-]++\s*+,\s*+(?:{_FORMATS})\b)
    # ${{x + 1}}, \#{{name}}, %{{count}}; after a digit, a percent sign belongs to the number.
    | (?:[$\#]|(?<![\d%])%)\{{[^{{}}]*+\}}
    # {{}}, {{0}}, {{name}}, {{ name }}, {{0:N2}}, {{0,-10}}, {{name!r}}
    | \{{[ ]?[\w.:\[\]-]*+(?:,\s*-?\d+)?(?:![rsa])?(?::[^{{}}\s]*+)?[ ]?\}}
    # %(name)s
    | %\(\w+\)[-+0\#]*\d*(?:\.\d+)?[a-z]
    # %name%; a single letter is rather that of %d.
    | (?<![\w%])%[A-Za-z_][\w.-]+%(?![\w%])
    # %s, %1$s, %02d, %ld, %.2f, %@; but neither "100%der" nor "100 % der", where the percent sign is a word.
    | (?<![\d%])%(?:\d+\$)?[-+0\#]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh?|ll?|[Lqjzt])?[@acdefgiopsuxEGX](?!\w)
    # Tags and comments, which are text where a page shows them. Not "<b and c>" of "a<b and c>d".
    | </?[a-zA-Z][\w:.-]*+(?:\s++(?:[\w:.-]++{_VALUE}|(?:{_VALUELESS})\b))*+\s*+/?> | <!--[^<>]*+>(?<=-->)
    # URLs and e-mail addresses
    | \b(?:(?:https?|ftp)://|www\.)[^\s<>"{ELEMENT}]*[\w/]
    | (?<![\w.+-])[\w.+-]{{1,64}}@[\w-]{{1,63}}(?:\.[\w-]{{1,63}}){{1,8}}
    """,
    re.VERBOSE,
)
_BRACES = re.compile(r"[{}]")


def find_placeholders(text: str) -> list[tuple[int, int]]:
    """Find the placeholders of a text; returns where they begin and end.

    Arguments with a format end at the brace that closes theirs, so that all of an ICU plural is one placeholder. They
    may have elements inside, which `ELEMENT` stands for. Without such a brace, they are no placeholders.
    """
    closing_braces: dict[int, int] | None = None
    spans = []
    start = 0
    while (match := _PLACEHOLDER.search(text, start)) is not None:
        start = match.end()
        if match["formatted"] is not None:
            if closing_braces is None:
                closing_braces = _match_braces(text)
            closing_brace = closing_braces.get(text.index("{", match.start()))
            if closing_brace is None:
                continue
            start = closing_brace + 1
        spans.append((match.start(), start))
    return spans


def _match_braces(text: str) -> dict[int, int]:
    """Find the closing brace of each opening brace that has one."""
    closing_braces = {}
    open_braces = []
    for brace in _BRACES.finditer(text):
        if brace[0] == "{":
            open_braces.append(brace.start())
        elif open_braces:
            closing_braces[open_braces.pop()] = brace.start()
    return closing_braces
