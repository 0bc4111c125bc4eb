"""Tags in sentences: the text is translated, and the tags come out around the right words."""

import html
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from html.parser import HTMLParser
from xml.sax.saxutils import escape, quoteattr

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import align, translate
from hf_vanilla_transformer.translation.markup_document import Document
from tests.translation.test_alignment import FOLDER


@pytest.fixture(scope="module")
def model():
    return AutoModelForSeq2SeqLM.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


# The model links "und" with the tens.
SENTENCES = {
    "none": ("forty two", "zwei und vierzig"),
    "one word": ("<b>forty</b> two", "zwei <b>und vierzig</b>"),
    "two words": ("<b>forty</b> <i>two</i>", "<i>zwei</i> <b>und vierzig</b>"),
    "all": ("<p>forty two</p>", "<p>zwei und vierzig</p>"),
    "nested": ("<p><b>three</b> hundred <i>and <b>sixty</b> five</i></p>",
               "<p><b>drei</b> hundert <i>fünf <b>und sechzig</b></i></p>"),
    "attributes": ('<a href="one" title="two &amp; three">forty</a> two',
                   'zwei <a href="one" title="two &amp; three">und vierzig</a>'),
    "empty": ("three <x/>hundred<y id='1'/>", "drei <x/>hundert<y id='1'/>"),
    "at the border": ("<x/>forty two <y/>", "<x/>zwei und vierzig <y/>"),
    "no text": ("<b></b>forty <i> </i>two", "<b></b>zwei und vierzig <i></i>"),
    "a comment": ("forty <!-- one --> two", "zwei und vierzig"),
    "spaces": ("<b> forty </b>two", "zwei <b>und vierzig</b>"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["html", "xml"])
@pytest.mark.parametrize("name", [name for name in SENTENCES if name not in ("a comment", "no text")])
def test_tags_are_around_the_right_words(model, tokenizer, name, kind):
    source, expected = SENTENCES[name]
    assert translate(model, tokenizer, [source], markup=kind) == [expected]


@pytest.mark.parametrize("kind", ["html", "xml"])
def test_comments_and_elements_without_text_come_out_once(model, tokenizer, kind):
    for source in ("forty <!-- one --> two", "<b></b>forty <i> </i>two"):
        (found,) = translate(model, tokenizer, [source], markup=kind)
        assert re.sub(r"\s+", " ", re.sub("<.*?>", "", found)).strip() == "zwei und vierzig"
        assert Counter(re.findall("<.*?>", found)) == Counter(re.findall("<.*?>", source))


def test_details_are_those_of_the_text(model, tokenizer):
    options = {"return_details": True, "num_return_sequences": 2}
    (found,) = translate(model, tokenizer, ["<b>forty</b> two"], markup="html", **options)
    (plain,) = translate(model, tokenizer, ["forty two"], **options)
    assert found.text == "zwei <b>und vierzig</b>"
    assert found._replace(text=plain.text, alternatives=plain.alternatives) == plain
    (other,) = found.alternatives
    assert re.sub("<.*?>", "", other.text) == plain.alternatives[0].text
    assert "<b>" in other.text


def test_sentences_of_a_text(model, tokenizer):
    pytest.importorskip("sentencex")
    (found,) = translate(model, tokenizer, ["<b>forty</b> two\n<i>twenty</i> one"], markup="xml", split_sentences=True)
    assert found == "zwei <b>und vierzig</b>\nein <i>und zwanzig</i>"


def test_blocks_of_html_are_sentences(model, tokenizer):
    pytest.importorskip("sentencex")
    source = "<p>forty\n two</p><ul><li><b>twenty</b> one</li><li>six<br>ninety</li></ul>"
    (found,) = translate(model, tokenizer, [source], markup="html", split_sentences=True)
    assert re.sub(r"\s*(<(?!/?b>)[^>]*>)\s*", r"\1", found) == (
        "<p>zwei und vierzig</p><ul><li>ein <b>und zwanzig</b></li><li>sechs<br>neunzig</li></ul>"
    )
    assert render("html", "<pre>one\ntwo</pre>", "eins\nzwei")[0] == "one\ntwo\n"


@pytest.mark.parametrize("kind", ["html", "xml"])
def test_elements_that_are_too_deep(model, tokenizer, kind):
    for depth in (200, 201):
        source = "<b>" * depth + "one" + "</b>" * depth
        if depth == 200:
            assert translate(model, tokenizer, [source], markup=kind) == [source.replace("one", "eins")]
        else:
            with pytest.raises(ValueError, match="more than 200 tags are inside each other, the last one '<b>'"):
                translate(model, tokenizer, [source], markup=kind)


def test_what_is_blank(model, tokenizer):
    assert translate(model, tokenizer, ["", "<br/>", " <b> </b>", "two"], markup="html")[:3] == ["", "<br/>", "<b></b>"]


# Rendering: links by hand.


def render(kind, source, target, *links):
    document = Document(kind, source)
    return document.text, document.render(target, list(links))


def test_entities_are_characters_for_the_model():
    text, found = render("html", "a&nbsp;&lt;b&gt; &amp; &#233;", "x <y> & é")
    assert text == "a\N{NO-BREAK SPACE}<b> & é"
    assert found == "x &lt;y&gt; &amp; é"
    assert render("xml", "1 &lt; <b>2</b> &#x26; <![CDATA[<3>]]>", "1 < 2 & <3>", (2, 2))[1] == (
        "1 &lt; <b>2</b> &amp; &lt;3&gt;"
    )


def test_a_whole_document_of_xml():
    prolog = '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE r SYSTEM "a.dtd">'
    text, found = render("xml", f"{prolog}\n<r>one <b>two</b></r>", "zwei eins", (0, 1), (1, 0))
    assert text == "one two"
    assert re.sub(r">\s+<", "><", found) == f"{prolog.replace(chr(10), '')}<r><b>zwei</b> eins</r>"
    assert ElementTree.fromstring(found.encode())[0].text == "zwei"


def test_characters_that_xml_forbids():
    assert render("xml", "<b>one</b>", "e\x0bi\x00ns", (0, 0))[1] == "<b>e i ns</b>"


def test_punctuation_stays_outside():
    links = [(0, 1), (1, 0)]
    assert render("xml", "(<b>one</b>), <i>two!</i>", "zwei! (eins),", *links)[1] == "<i>zwei!</i> (<b>eins</b>),"
    assert render("xml", "<b>(one),</b> two", "zwei (eins),", *links)[1] == "zwei <b>(eins),</b>"


def test_words_that_are_apart_in_the_translation():
    """The tag goes around the larger part, over a word without links, and not over words of others."""
    links = [(0, 0), (0, 1), (0, 3), (1, 4), (0, 5)]
    assert render("xml", "<b>one</b> two", "a b - c D e", *links)[1] == "<b>a b - c</b> D e"


def test_adjacent_tags_share_no_word():
    assert render("xml", "<b>one</b><i>two</i>", "eins", (0, 0))[1] == "<b>eins</b><i></i>"
    assert render("xml", "<b>one</b> <i>two</i>", "eins", (0, 0), (1, 0))[1] == "<i></i><b>eins</b>"


def test_a_word_of_several_tags_is_in_one_of_them():
    """As German compounds are, which have less than half of their links with each."""
    links = [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)]
    found = render("xml", "<b>three hundred</b> <i>forty</i> <u>two</u> five", "dreihundertzweiundvierzigfünf", *links)
    assert re.sub("<[iu]></[iu]>", "", found[1]) == "<b>dreihundertzweiundvierzigfünf</b>"
    # The larger one does not take it from the one that has most of it.
    found = render("xml", "<b>a b c</b> <i>d e</i>", "x", (0, 0), (3, 0), (4, 0))
    assert found[1].replace("<b></b>", "") == "<i>x</i>"


def test_what_a_tag_crosses_is_left_out_where_it_has_no_words():
    assert render("html", "<b>one <i>two</b> and</i> three", "eins zwei drei", (0, 0), (1, 1), (3, 2))[1] == (
        "<b>eins <i>zwei</i></b> drei"
    )
    assert (
        "<img>" in render("html", "<b>one <i>two</b> <img> and</i> three", "eins zwei drei", (0, 0), (1, 1), (3, 2))[1]
    )


def test_names_and_texts_of_any_script():
    assert render("xml", "<é ü='ß'>één</é> <x/>twee", "eins zwei", (0, 0), (1, 1))[1] == "<é ü='ß'>eins</é> <x/>zwei"


def test_words_without_links():
    assert render("xml", "one <b>two</b> three", "x y")[1].replace(" ", "").replace("<b></b>", "") == "xy"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("<b>one <i>two</b> three</i>", "<b>eins <i>zwei</i></b> <i>drei</i>"),  # crossing
        ("one <b>two three", "eins <b>zwei drei</b>"),  # not closed
        ("one</b> two three", "eins zwei drei"),  # not opened
        ("one<br>two<BR>three", "eins <br>zwei <BR>drei"),
        ("<header>one</header><main>two</main>three", "<header>eins</header> <main>zwei</main> drei"),
        ("<p>one<aside>two</aside>three", "<p>eins</p> <aside>zwei</aside> drei"),
        (
            "<html><head><title>one</title></head><body><button>two</button><option>three</option></body></html>",
            "<html><head><title>eins</title></head> <body><button>zwei</button> <option>drei</option></body></html>",
        ),
        ("<P>one</P><p>two</p> three", "<P>eins</P> <p>zwei</p> drei"),
        ("one <img src=a> two three", "eins <img src=a> zwei drei"),
        ("one <script>if (a < b && c) two()</script>two three", "eins <script>if (a < b && c) two()</script>zwei drei"),
        ("one & two < three", "eins zwei drei"),
        ("<b>one <i>two</b> three", "<b>eins <i>zwei</i></b> <i>drei</i>"),
        ("<b>one <i>two three</b>", "<b>eins <i>zwei drei</i></b>"),  # crossing, but nothing comes after it
        ("<p>one<p>two three", "<p>eins</p> <p>zwei drei</p>"),  # closed by what opens, and by its parent
        ("<ul><li>one<li>two</ul>three", "<ul><li>eins</li> <li>zwei</li></ul> drei"),
        ("<ul><li>one<ul><li>two</ul><li>three</ul>", "<ul><li>eins <ul><li>zwei</li></ul></li> <li>drei</li></ul>"),
        ("<tr><td>one<td><b>two</tr>three", "<tr><td>eins</td> <td><b>zwei</b></td></tr> drei"),
        ("<dl><dt>one<dd>two</dl>three", "<dl><dt>eins</dt> <dd>zwei</dd></dl> drei"),
        ("<a href=x>one <b>two <a>three", "<a href=x>eins <b>zwei</b></a> <b><a>drei</a></b>"),
        ("<h1>one<h2>two</h2>three", "<h1>eins</h1> <h2>zwei</h2> drei"),
        ("<p>one<h1>two</h1>three", "<p>eins</p> <h1>zwei</h1> drei"),
        ("one two three<script>if (a < b)", "eins zwei drei<script>if (a < b)</script>"),
        (
            "<!DOCTYPE html>one <![CDATA[x]]> two <?php y ?> three",
            "<!DOCTYPE html>eins <![CDATA[x]]> zwei <?php y ?> drei",
        ),
        ('one two <a title="<b> > one">three</a >', 'eins zwei <a title="<b> > one">drei</a>'),
    ],
)
def test_html_is_repaired(source, expected):
    text, found = render("html", source, "eins zwei drei", (0, 0), (1, 1), (2, 2))
    assert found == expected
    assert not re.search("script|if|CDATA|php|title", text)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("<b>one <i>two</b> three</i>", "mismatched tag at character 16"),
        ("<b>one", "mismatched tag"),
        ("one & two", "invalid token"),
        ("one&nbsp;two", "undefined entity at character 4"),
        ("</r><r>", "junk after document element"),
        ('<!DOCTYPE r [<!ENTITY a "b">]>', "syntax error|not well-formed"),
        ('<!DOCTYPE r SYSTEM "a.dtd">one&a;two', "undefined entity at character 31"),
        ('<?xml version="1.0"?>\n<b>one', "mismatched tag at line 2, character 9"),
        ("<b>" + "one " * 100, "mismatched tag at character 406"),
    ],
)
def test_xml_that_is_not_well_formed(model, tokenizer, source, reason):
    with pytest.raises(
        ValueError, match=rf"is not well-formed XML: .*({reason}).*; correct it, or give markup=\"html\""
    ):
        translate(model, tokenizer, ["one", source], markup="xml")


def test_other_markup(model, tokenizer):
    with pytest.raises(ValueError, match="markup is 'tex'; choose one of html, xml"):
        translate(model, tokenizer, ["one"], markup="tex")


# Any well-formed sentence, and any links.

NAMES = st.sampled_from(["b", "i", "x:y", "span"])
TEXTS = st.text(st.sampled_from("ab .,!&<>\"'é😀\n]"), max_size=6)
ATTRIBUTES = st.dictionaries(st.sampled_from(["id", "a"]), TEXTS.map(lambda text: text.replace("\n", "")), max_size=2)


def tag(name, attributes, content):
    opening = f"<{name}{''.join(f' {key}={quoteattr(value)}' for key, value in attributes.items())}"
    return f"{opening}/>" if content is None else f"{opening}>{content}</{name}>"


LEAVES = TEXTS.map(escape) | st.builds(tag, NAMES, ATTRIBUTES, st.none()) | st.just("<!-- <b> &c; -->")
MARKUP = st.recursive(
    LEAVES, lambda inner: st.lists(st.builds(tag, NAMES, ATTRIBUTES, inner) | inner, max_size=4).map("".join)
)


@pytest.mark.parametrize(
    ("markup", "text", "found"),
    [
        ("<b>one</b> <a <a <a", "one <a <a <a", "<b>one</b> &lt;a &lt;a &lt;a"),
        ("one <", "one <", "one &lt;"),
        ("one &amp; &lt;b", "one & <b", "one &amp; &lt;b"),
        ("one <script>x < 1", "one", "one <script>x < 1</script>"),
        ("one <![<![x]>", "one", "one <!--[<![x]-->"),
    ],
)
def test_what_is_no_tag_is_text(markup, text, found):
    document = Document("html", markup)
    assert document.text.rstrip() == text
    assert document.render(text, [(word, word) for word in range(len(text.split()))]) == found


def test_the_end_of_html_is_searched_once(monkeypatch):
    """Not at each "<", which takes 10 seconds for 32,768 characters."""
    read, parse = [], HTMLParser.parse_starttag
    monkeypatch.setattr(HTMLParser, "parse_starttag", lambda parser, i: read.append(i) or parse(parser, i))
    Document("html", "<b>one</b>" + 100 * " <a")
    assert len(read) == 1


class Tags(HTMLParser):
    """Which tags HTML has, and whether each closing one belongs to the last that is open."""

    def __init__(self, text):
        super().__init__()
        self.found, self.open = Counter(), []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.found[tag, str(sorted(attrs))] += 1
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found[tag, str(sorted(attrs)), "empty"] += 1

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@settings(max_examples=150, deadline=None)
@given(markup=MARKUP, target=TEXTS, links=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_any_well_formed_sentence_stays_so(markup, target, links):
    for kind in ("xml", "html"):
        document = Document(kind, markup)
        assert "<!--" not in document.text
        sizes = len(document.text.split()), len(target.split())
        pairs = [pair for pair in links if pair[0] < sizes[0] and pair[1] < sizes[1]]
        found = document.render(target, pairs)
        if kind == "html":
            assert Tags(found).found == Tags(markup).found
        else:
            trees = [ElementTree.fromstring(f'<r xmlns:x="u">{text}</r>') for text in (markup, found)]
            tags = [Counter((each.tag, str(each.attrib)) for each in tree.iter()) for tree in trees]
            assert tags[0] == tags[1]
            assert "".join("".join(trees[1].itertext()).split()) == "".join(target.split())
        assert found.count("<!--") == markup.count("<!--")


NESTED = st.sampled_from(["b", "a", "p", "ul", "li", "div", "h1", "dl", "dt", "dd"])
SOUP = st.lists(NESTED.map("<{}>".format) | NESTED.map("</{}>".format) | st.sampled_from(["one ", " two", "&lt;", "<"]))


class Nesting(Tags):
    """Whether elements are inside of those that HTML lets them be in."""

    def handle_starttag(self, tag, attrs):
        inside = self.open[max((place for place, each in enumerate(self.open) if each in ("ul", "dl")), default=0) :]
        ended = {"a": ["a"], "b": [], "one": [], "h1": ["p", "h1"], "li": ["p", "li"], "dt": ["p", "dt", "dd"]}
        ended["dd"] = ended["dt"]
        assert not set(inside).intersection(ended.get(tag, ["p"]))
        super().handle_starttag(tag, attrs)


@settings(max_examples=200, deadline=None)
@given(markup=SOUP.map("".join))
def test_any_tags_of_html_come_out_well_formed(markup):
    document = Document("html", markup)
    words = len(document.text.split())
    found = document.render(document.text.rstrip(), [(word, word) for word in range(words)])
    Nesting(found)
    assert "".join(html.unescape(re.sub("<.*?>", "", found)).split()) == "".join(document.text.split())


def test_alignments_decide(model, tokenizer):
    """A tag follows its word where another attention would put it elsewhere."""
    (links,) = align(model, tokenizer, ["forty two"], ["zwei und vierzig"])
    assert {(0, 2), (1, 0)} <= set(links)
    for word, expected in enumerate(("zwei <b>und vierzig</b>", "<b>zwei</b> und vierzig")):
        words = ["forty", "two"]
        words[word] = f"<b>{words[word]}</b>"
        assert translate(model, tokenizer, [" ".join(words)], markup="xml") == [expected]
