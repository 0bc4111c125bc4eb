"""Values for the fuzz targets: texts, JSON, and changes of the files of a folder."""

import json
import re
import shutil
from dataclasses import fields
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints
from xml.sax.saxutils import escape

from hypothesis import strategies as st
from transformers.debug_utils import DebugOption

from hf_vanilla_transformer.support.build_arguments import dataclasses_in


# Not between a million and a billion, which may fit into memory and take long.
INTEGERS = st.sampled_from([-(10**12), -1, 0, 1, 2, 3, 7, 64, 1000, 10**12, 10**30])
FLOATS = st.sampled_from([-1.5, -0.0, 0.5, 1.0, 1e-30, 1e6, 1e300, float("nan"), float("inf"), -float("inf")])
WORDS = st.sampled_from(["", "relu", "eager", "sinusoidal", "learned", "bart", "float16", "None", "../..", "\x00", "ä"])
SCALARS = st.one_of(st.none(), st.booleans(), INTEGERS, FLOATS, WORDS)
VALUES = st.one_of(
    SCALARS, st.lists(SCALARS, max_size=3), st.dictionaries(WORDS, SCALARS, max_size=2), st.text(max_size=5)
)
# Texts without lone surrogates, which are no text; mostly of the characters that formats give a meaning.
SENTENCES = st.one_of(
    st.text(st.sampled_from("ab \t\r\n\"',;\\{}[]<>/&\u2028\u00a0\ufeff\0é日🙂"), max_size=30),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.sampled_from(["<s>", "</s>", "<pad>", "seven", "forty-two", "a" * 200]),
)
# Characters that normalization removes.
IGNORED = st.sampled_from(
    "\0\x1b\x7f\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u202a\u202e\u2060\u2064\u2066\u206f\ufeff"
)
# Texts without letters: numbers, times, punctuation, symbols, emoji, marks, white space.
LETTERLESS = st.one_of(
    st.text(st.sampled_from("0123456789 .,:;+-/()!?'\"<>&%…–♪€🙂\u00a0\n\t\u0301\u2028Ⅻ½٣"), max_size=30),  # noqa: RUF001
    st.text(st.characters(exclude_categories=["L", "Cs"]), max_size=20),
    st.sampled_from(["2024", "+49 30 123456", "00:00:01,000 --> 00:00:04,000", "19.", "1. 2. 3.", "---"]),
)
CELLS = SENTENCES.map(lambda text: re.sub(r"[\t\r\n\0]", "", text))
# Lines that spell special tokens.
HOSTILE = st.lists(
    st.sampled_from(["<s>", "</s>", "<pad>", "<", ">", "/s>", "s>", "pad>", "\u0120", "word", " ", "\u00ad"])
    | SENTENCES,
    max_size=8,
).map("".join)

# Text as it comes from web pages and word processors, around words that a model knows.
NOISE = st.sampled_from(
    [
        *"\x07\x1c\x1f\xa0\xad\u200b\u200e\u2060\ufeff\x85\u2028\u2009 \t-,.;:'\u2019\u0301",
        "\u202e",
        "\u200d",
        "ㅤ",
        "은",
        "\U0001f468",
    ]
)
WORDS_OF_NUMBERS = st.sampled_from(["seven", "forty-two", "one", "hundred", "1,250,000", "https://a.b/c,d;e", "don't"])
NOISY = st.lists(NOISE | WORDS_OF_NUMBERS | st.just(" "), max_size=12).map("".join)

MARKUP = st.lists(
    st.sampled_from(
        ["<b>", "</b>", "<p>", "<br/>", "<", ">", "</", "<!--", "-->", "<![", "<![CDATA[", "]]>", "<?", "<!"]
    )
    | st.sampled_from(["&lt;", "&", "&#0;", '"', "'", "<a b=", "<script>", "</script>", "one ", "two.", "\n"])
    | SENTENCES,
    max_size=8,
).map("".join)

# Documents for which HTML and XML have one spelling, so that they can be compared character by character: their parts,
# with texts as characters, which `spell_fragment` escapes.
PLAIN_TEXTS = st.sampled_from(
    [
        *("one", "two", "Three", "l'état", "CO2", "x", "5", "2024", "12.5", "漢字", "は", "น้ำ", "\U0001f642", "\u0301"),
        *(
            ".",
            ",",
            ";",
            ":",
            "!",
            "?",
            "(",
            ")",
            "[27]",
            "«",
            "»",
            '"',
            "“",
            "”",
            "'",
            "+",
            "-",
            "\N{EN DASH}",
            "/",
            "%",
            "|",
        ),
        *(". ", ", ", " (", ") ", "« ", " »", "& ", "< ", " > ", "50 % ", "100 %", "{", "}"),
        *("one two", "three, four", "Five. Six", "a-b"),
    ]
)
BLANKS = st.sampled_from([" ", " ", " ", "\n", "  ", "\n  ", "\xa0", "\u202f", "\u2003", " \xa0", "\xa0 "])
PLACEHOLDERS = st.sampled_from(
    [
        *("{0}", "{1}", "{name}", "{{ user }}", "${x}", "#{y}", "%{count}", "%s", "%1$s", "%02d", "%.2f", "%@"),
        *("{0,number}", "{n, plural, one {# file} other {{m} files}}", "{\\i1}", "https://a.b/c?d=1&e#f", "www.a.b"),
        *("%name%", "me@a.de", "<file>", "</x>"),
    ]
)
FRAGMENT_TEXTS = st.lists(PLAIN_TEXTS | BLANKS | PLACEHOLDERS, min_size=1, max_size=4).map("".join)
INLINE_TAGS = st.sampled_from(
    [
        *(("b", ""), ("i", ""), ("em", ""), ("span", ' class="a &amp; b"'), ("sup", ""), ("sub", ""), ("u", "")),
        *(
            ("code", ""),
            ("kbd", ""),
            ("samp", ""),
            ("q", ' title=" one {0}, two %s  "'),
            ("span", ' translate="no"'),
            ("bdi", ""),
        ),
    ]
)
BLOCK_TAGS = st.sampled_from([("p", ""), ("div", ' id="x"'), ("h1", ""), ("li", ""), ("blockquote", "")])
EMPTY_ELEMENTS = st.sampled_from(
    [
        *(("img", ' src="a.png"'), ("input", ' type="text"'), ("wbr", ""), ("br", ""), ("i", ' class="fa"')),
        *(("a", ' name="x"'), ("!", " note "), ("svg", "")),
    ]
)


@st.composite
def elements_without_children(draw: st.DrawFn) -> tuple[str, str, list[Any]]:
    """An element without text, or a comment."""
    return (*draw(EMPTY_ELEMENTS), [])


@st.composite
def links(draw: st.DrawFn) -> tuple[str, str, list[Any]]:
    """A link around a text, a number of a footnote, a URL or an image; HTML allows no links inside of links."""
    inside: Any = FRAGMENT_TEXTS | elements_without_children().filter(lambda element: element[0] != "a")
    return ("a", ' href="#n"', draw(st.lists(inside, max_size=2)))


@st.composite
def rubies(draw: st.DrawFn) -> tuple[str, str, list[Any]]:
    """One or two base texts with their readings."""
    base: Any = FRAGMENT_TEXTS | st.just(("b", "", ["漢字"]))
    reading = [("rp", "", ["("]), ("rt", "", ["kan ji"]), ("rp", "", [")"])]
    bases = draw(st.lists(base, min_size=1, max_size=2))
    return ("ruby", "", [part for text in bases for part in (text, *reading)])


LEAVES: Any = st.one_of(FRAGMENT_TEXTS, FRAGMENT_TEXTS, FRAGMENT_TEXTS, elements_without_children(), links(), rubies())
INLINE_PARTS: Any = st.recursive(
    LEAVES, lambda inner: st.tuples(INLINE_TAGS, st.lists(inner, max_size=3)).map(lambda tag: (*tag[0], tag[1]))
)
BLOCKS: Any = st.tuples(BLOCK_TAGS, st.lists(INLINE_PARTS, max_size=4)).map(lambda element: (*element[0], element[1]))
# HTML that is a text of XML.
ESCAPED_HTML: Any = st.tuples(
    st.sampled_from(["escaped", "CDATA"]), st.just(""), st.lists(INLINE_PARTS | BLOCKS, max_size=4)
)
FRAGMENTS: Any = st.lists(INLINE_PARTS | BLOCKS | ESCAPED_HTML, max_size=6)


def spell_fragment(parts: list[Any], markup_format: str) -> str:
    """Write the parts of a fragment as browsers write HTML, or as XML."""
    spelled = ""
    for part in parts:
        if isinstance(part, str):
            text = escape(part)
            spelled += text.replace("\xa0", "&nbsp;") if markup_format == "html" else text
            continue
        name, attributes, children = part
        if name in ("escaped", "CDATA"):
            content = spell_fragment(children, "html")
            if markup_format == "xml" and name == "escaped":
                content = escape(content)
            elif markup_format == "xml" and "<" in content and "]]>" not in content:
                content = f"<![CDATA[{content}]]>"
            elif markup_format == "xml":
                content = escape(content)
            spelled += f"<div>{content}</div>"
        elif name == "!":
            spelled += f"<!--{attributes}-->"
        elif name in ("img", "input", "wbr", "br"):
            spelled += f"<{name}{attributes}{'' if markup_format == 'html' else '/'}>"
        else:
            spelled += f"<{name}{attributes}>{spell_fragment(children, markup_format)}</{name}>"
    return spelled


@st.composite
def changed_fields(draw: st.DrawFn, path: Path, further: tuple[str, ...] = ()) -> dict[str, Any]:
    """The content of a JSON file with one to three other values, of its own fields or of `further` ones."""
    content = json.loads(path.read_text(encoding="utf-8"))
    names = st.one_of(st.sampled_from([*content, *further]), st.text(max_size=4))
    return {**content, **draw(st.dictionaries(names, VALUES, min_size=1, max_size=3))}


@st.composite
def damages(draw: st.DrawFn, folder: Path) -> tuple[str, bytes | None]:
    """The name of a file of a folder, and the bytes that replace it: cut, changed, or None for no file."""
    path = draw(st.sampled_from(sorted(path for path in folder.iterdir() if path.suffix != ".py")))
    content = path.read_bytes()
    place = draw(st.integers(0, len(content)))
    damage = draw(st.sampled_from(["cut", "changed", "empty", "gone"]))
    if damage == "gone":
        return path.name, None
    if damage == "empty":
        return path.name, b""
    if damage == "cut":
        return path.name, content[:place]
    return path.name, content[:place] + draw(st.binary(min_size=1, max_size=8)) + content[place + 1 :]


def change_layout(draw: st.DrawFn, folder: Path, other_folders: list[Path]) -> None:
    """Change the files of a folder as people do: leave one out, rename one, add one of another folder, edit a field."""
    path = draw(st.sampled_from(sorted(folder.iterdir())))
    change = draw(st.sampled_from(["gone", "renamed", "added", "edited"]))
    if change == "gone":
        path.unlink()
    elif change == "renamed":
        path.rename(folder / draw(st.sampled_from([f"my-{path.name}", f"{path.name}.old", f"{path.stem}.en", "a.npz"])))
    elif change == "added":
        other = draw(st.sampled_from([path for another in other_folders for path in sorted(another.iterdir())]))
        shutil.copyfile(other, folder / other.name)
    elif path.suffix == ".json":
        path.write_text(json.dumps(draw(changed_fields(path))), encoding="utf-8")
    else:
        names = st.sampled_from(["beam-size", "normalize", "vocabs", "train-sets", "guided-alignment", "word-penalty"])
        content = json.dumps(draw(st.dictionaries(names, VALUES | st.lists(st.just("vocab.en.spm"), max_size=2))))
        (folder / f"{path.name}.decoder.yml").write_text(content, encoding="utf-8")


# Texts that YAML, in one of its versions, reads as something else than text.
LOOK_TYPED = st.one_of(
    st.sampled_from(
        ["1.10", "012", "0o17", "0x1F", "12:30:45", "1e5", "47e5103", "1_000", "-.5", "+3", "1.", "1.0e-05"]
    ),
    st.sampled_from(["no", "NO", "yes", "y", "true", "False", "2026-11-27", "2026-11-27 10:00:00", "=", "<<", "T"]),
    st.from_regex(r"[0-9a-f]{7}", fullmatch=True),
    st.from_regex(r"[-+.]?[0-9]([0-9:._eE+-]{0,5}[0-9eE])?", fullmatch=True),
)
TEXTS = st.one_of(
    LOOK_TYPED,
    st.sampled_from(
        ["null", "~", "", " a ", "- a", "a: b", "#", "'", '"', "[", "{}", "!a", "&a", "*a", "%", "on", ".inf"]
    ),
    SENTENCES,
    st.text(max_size=8),
).filter(lambda text: text != "--")  # Python removes it from the values of a command line.


def members_of(annotation: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type that an annotation is."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def annotations_of(dataclass_type: type) -> dict[str, Any]:
    """The type of each argument."""
    annotations = {}
    for part in dataclasses_in(dataclass_type):
        hints = get_type_hints(part)
        annotations |= {field.name: hints[field.name] for field in fields(part) if field.init}
    return annotations


def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    """The values of a type of arguments, as a file has them."""
    members = members_of(annotation)
    if {bool, str} <= set(members):
        return st.booleans() | st.just("all")
    if list[DebugOption] in members:
        return st.lists(st.sampled_from([option.value for option in DebugOption]))
    strategies = []
    for member in members:
        if member == Literal[False]:  # A file has text in its place.
            continue
        if get_origin(member) is Literal:
            strategies.append(st.sampled_from(get_args(member)))
        elif get_origin(member) is list:
            strategies.append(st.lists(values_of(get_args(member)[0]), max_size=3))
        elif member is dict or get_origin(member) is dict:
            strategies.append(st.dictionaries(TEXTS, st.none() | st.booleans() | st.integers() | st.floats() | TEXTS))
        elif isinstance(member, type) and issubclass(member, Enum):
            return st.sampled_from([choice.value for choice in member])
        elif member in BY_TYPE:
            strategies.append(BY_TYPE[member])
    return st.one_of(strategies)


BY_TYPE = {bool: st.booleans(), int: st.integers(), float: st.floats(), str: TEXTS}


@st.composite
def arguments_of(draw: st.DrawFn, dataclass_type: type) -> dict[str, Any]:
    """Values of some of the arguments of a class."""
    annotations = annotations_of(dataclass_type)
    # A file cannot hold an object of this class.
    del annotations["parallelism_config"]
    names = draw(st.lists(st.sampled_from(list(annotations)), unique=True, max_size=12))
    return {name: draw(values_of(annotations[name])) for name in names}


def typed_values(dataclass_type: type) -> st.SearchStrategy[tuple[str, str]]:
    """The name of an argument, and a text that can be typed without quotation marks into a file."""
    annotations = annotations_of(dataclass_type)
    # From a file, these take words where the command line takes only truth values.
    names = [name for name in annotations if not {bool, str} <= set(members_of(annotations[name]))]
    return st.tuples(st.sampled_from(names), LOOK_TYPED)
