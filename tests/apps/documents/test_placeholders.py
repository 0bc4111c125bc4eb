"""Placeholders of software, URLs, addresses and tags in texts."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_vanilla_transformer.apps.documents.placeholders import find_placeholders


def placeholders(text):
    return [text[start:end] for start, end in find_placeholders(text)]


# Each is one placeholder as a whole.
PLACEHOLDERS = [
    *("{name}", "{0}", "{}", "{ name }", "{user.name}", "{0:N2}", "{0,-10}", "{name!r}", "{x[0]}"),
    *("{{name}}", "{{ user.name | upper }}", "{% if user %}", "${x}", "${a + 1}", "#{name}", "%{count}"),
    *(
        "%s",
        "%d",
        "%@",
        "%1$s",
        "%2$@",
        "%1s",
        "%02d",
        "%5d",
        "%-8s",
        "%+d",
        "%ld",
        "%lld",
        "%zu",
        "%.2f",
        "%5.1f",
        "%x",
    ),
    *("%(name)s", "%(n)02d", "%name%", "%USER_NAME%"),
    *("{0,number}", "{0, number, integer}", "{date, date, long}", "{0,choice,0#none|1#one|1<many}"),
    "{count, plural, one {# file} other {# files}}",
    "{n, plural, =0 {no files} one {{name} has # file} other {{name} has {m, plural, one {#} other {#s}} files}}",
    "{gender, select, male {he} female {she} other {they}}",
    "{n, selectordinal, one {#st} two {#nd} other {#th}}",
    *("{\\i1}", "{\\an8}", "{\\c&HFFFFFF&}"),
    *(
        "https://a.b/c?d=1&e#f",
        "www.a.b",
        "me.too@a-b.co.uk",
        "<b>",
        "</b>",
        "<br/>",
        '<a href="x" disabled>',
        "<!-- x -->",
    ),
]


@pytest.mark.parametrize("placeholder", PLACEHOLDERS)
def test_find_placeholders(placeholder):
    for text in ("{}", "one {} two", "({}), two", "one: {}.", "5 {} two", "{}, {} two"):
        # Not str.format, which braces would confuse.
        assert placeholders(text.replace("{}", placeholder)) == [placeholder] * text.count("{}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{0}{1}%s%s%1$s%2$s", ["{0}", "{1}", "%s", "%s", "%1$s", "%2$s"]),
        ("%d%% of %s", ["%d", "%s"]),
        ("%d% done", ["%d"]),
        ("{\\i1}one{\\i0}", ["{\\i1}", "{\\i0}"]),
        # After a number, a percent sign is that of the number.
        ("50%{unit}", ["{unit}"]),
        ("take %s (50%)", ["%s"]),
        # Only what is closed.
        ("{n, plural, one {# file", []),
        ("{n, plural, one {# file} other {{m}", ["{m}"]),
        ("{{ {name}", ["{name}"]),
    ],
)
def test_find_placeholders_next_to_each_other(text, expected):
    assert placeholders(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *(
            "100 % der Fälle",
            "50% discount",
            "50 % discount",
            "100%der",
            "50%d'abord",
            "5 % s",
            "%",
            "% s",
            "100 %, so",
        ),
        *("between 5% and 10%", "5%-10%", "a%20b%2Fc", "%discount", "%secret", "%%s", "%%d", "100%s"),
        *("{see below}", "{a, b}", "{ one two }", "{plural, of cats}", "f(x) { return; }"),
        *("a < b and c > d", "a<b and c>d", "1 <2> 3", "<3", "<->", "-> <-", "me @ home", "#1", "$5", "C# {not one}"),
    ],
)
def test_find_placeholders_in_ordinary_text(text):
    assert placeholders(text) == []


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("{}<>/%$#@,.:'\"= ab1s-\\\ufffc!"), max_size=40))
def test_find_placeholders_in_any_text(text):
    end_of_last = 0
    for start, end in find_placeholders(text):
        assert end_of_last <= start < end <= len(text)
        end_of_last = end


@pytest.mark.parametrize(
    "part",
    [
        "{a,plural,",
        "{{",
        "{",
        "<a b=c ",
        '<a b="',
        "<!--",
        "%a",
        "%",
        "{%",
        "www.",
        "http://",
        "a@",
        "a.",
        "${",
        "{a[",
        "<a ",
    ],
)
def test_find_placeholders_takes_linear_time(part):
    durations = []
    for count in (4_000, 16_000):
        started = time.perf_counter()
        find_placeholders(part * count)
        durations.append(time.perf_counter() - started)
    # Quadratic time would be 16 times as long, and seconds. The constant is for a busy machine.
    assert durations[1] < 8 * durations[0] + 0.5
