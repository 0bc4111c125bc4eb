"""Find the parts of a text that must stay unchanged: software placeholders, URLs, e-mail addresses, and tags as text.

Software placeholders, such as "{name}" or "%s", are replaced with values when a program shows the text.
"""

import re


# In a text that is searched for placeholders, this character (U+FFFC, object replacement) stands for an element.
ELEMENT = "\ufffc"
# Arguments with these formats may have braces inside, such as {count, plural, one {# file} other {# files}}.
_FORMATS = "number|date|time|spellout|ordinal|duration|choice|plural|select|selectordinal"
# The value of an attribute, with the equals sign before it.
_VALUE = r"""\s*+=\s*+(?:"[^"<>]*+"|'[^'<>]*+'|[^\s"'<>=]++)"""
# Attributes that need no value. Any other word without a value shows that "<" is not the start of a tag.
_VALUELESS = "allowfullscreen|async|autoplay|checked|controls|defer|disabled|hidden|loop|multiple|muted|nowrap|open"
_VALUELESS += "|readonly|required|reversed|selected"
# The pattern is verbose, so its white space is ignored, and its comments start with "#". In an f-string, each brace of
# the pattern is written twice, even in the comments.
# No alternative can match across a position at which another match could start. Searching therefore takes linear time.
_PLACEHOLDER = re.compile(
    rf"""
    # {{{{name}}}} and {{{{ user.name | upper }}}}, {{% if user %}}, {{\i1}} of subtitles
    \{{\{{[^{{}}]*+\}}\}} | \{{%[^{{}}]*\}} | \{{\\[^{{}}]*+\}}
    # The start of an argument with a format, such as "{{0,number". Its end is found by counting braces.
    | (?P<formatted>(?:[$\#]|(?<![\d%])%)?\{{\s*+[\w.-]++\s*+,\s*+(?:{_FORMATS})\b)
    # ${{x + 1}}, \#{{name}}, %{{count}}. A percent sign after a digit belongs to the number.
    | (?:[$\#]|(?<![\d%])%)\{{[^{{}}]*+\}}
    # {{}}, {{0}}, {{name}}, {{ name }}, {{0:N2}}, {{0,-10}}, {{name!r}}
    | \{{[ ]?[\w.:\[\]-]*+(?:,\s*-?\d+)?(?:![rsa])?(?::[^{{}}\s]*+)?[ ]?\}}
    # %(name)s
    | %\(\w+\)[-+0\#]*\d*(?:\.\d+)?[a-z]
    # %name%. A single letter more likely belongs to "%d".
    | (?<![\w%])%[A-Za-z_][\w.-]+%(?![\w%])
    # %s, %1$s, %02d, %ld, %.2f, %@. In "100%der" and "100 % der", the percent sign belongs to the number.
    | (?<![\d%])%(?:\d+\$)?[-+0\#]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh?|ll?|[Lqjzt])?[@acdefgiopsuxEGX](?!\w)
    # Tags and comments that a page shows as text. The "<b and c>" of "a<b and c>d" is not a tag.
    | </?[a-zA-Z][\w:.-]*+(?:\s++(?:[\w:.-]++{_VALUE}|(?:{_VALUELESS})\b))*+\s*+/?> | <!--[^<>]*+>(?<=-->)
    # URLs and e-mail addresses
    | \b(?:(?:https?|ftp)://|www\.)[^\s<>"{ELEMENT}]*[\w/]
    | (?<![\w.+-])[\w.+-]{{1,64}}@[\w-]{{1,63}}(?:\.[\w-]{{1,63}}){{1,8}}
    """,
    re.VERBOSE,
)
_BRACES = re.compile(r"[{}]")


def find_placeholders(text: str) -> list[tuple[int, int]]:
    """Return the start and the end of each placeholder in a text.

    For example, "{0} of %s" has the placeholders (0, 3) and (7, 9). An argument with a format, such as an ICU plural,
    is one placeholder up to its closing brace. The text may contain the character `ELEMENT` in place of an element, for
    example inside an argument. An argument without a closing brace is not a placeholder.
    """
    # Braces are matched once for the whole text, because matching them for each argument would take quadratic time.
    closing_braces = _match_braces(text)
    spans: list[tuple[int, int]] = []
    match = _PLACEHOLDER.search(text)
    while match is not None:
        end = _end_of_placeholder(match, closing_braces)
        if end is None:
            # The match is not a placeholder, but another one may start after it.
            end = match.end()
        else:
            spans.append((match.start(), end))
        match = _PLACEHOLDER.search(text, end)
    return spans


def _end_of_placeholder(match: re.Match[str], closing_braces: dict[int, int]) -> int | None:
    """Return the end of a placeholder; None if it is an argument with a format that has no closing brace.

    Args:
        match: a match of `_PLACEHOLDER`. For an argument with a format, it ends after the format.
        closing_braces: the position of the closing brace for each position of an opening brace.
    """
    # The group `formatted` is the start of an argument with a format, such as "{count, plural". It is None for other
    # placeholders, which end where the match ends.
    if match["formatted"] is None:
        return match.end()
    opening_brace = match.start() + match["formatted"].index("{")
    closing_brace = closing_braces.get(opening_brace)
    if closing_brace is None:
        return None
    return closing_brace + 1


def _match_braces(text: str) -> dict[int, int]:
    """Map the position of each opening brace to the position of its closing brace. Unmatched braces are left out."""
    closing_braces = {}
    # The positions of the opening braces that have not been closed yet. The last one is closed first.
    open_braces = []
    for brace in _BRACES.finditer(text):
        if brace[0] == "{":
            open_braces.append(brace.start())
        elif open_braces:
            closing_braces[open_braces.pop()] = brace.start()
    return closing_braces
