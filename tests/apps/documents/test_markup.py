"""Documents with tags: their text is translated block by block, and the tags come out around the right words."""

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from xml.sax.saxutils import escape, quoteattr

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import align, translate, translate_documents
from hf_vanilla_transformer.apps.documents.markup_document import Document
from tests.translation.test_alignment import FOLDER


html5lib = pytest.importorskip("html5lib")
pytest.importorskip("selectolax")


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
    "attributes": ('<a href="one" rel="two &amp; three">forty</a> two',
                   'zwei <a href="one" rel="two &amp; three">und vierzig</a>'),
    "spaces": ("<b> forty </b>two", "zwei <b>und vierzig</b>"),
}  # fmt: skip


@pytest.mark.parametrize("markup_format", ["html", "xml"])
@pytest.mark.parametrize("name", SENTENCES)
def test_translate_documents_places_tags(model, tokenizer, name, markup_format):
    source, expected = SENTENCES[name]
    assert translate_documents(model, tokenizer, [source], format=markup_format) == [expected]


@pytest.mark.parametrize(
    ("source", "target", "links", "expected"),
    [
        ("<b>你好</b>，世界", "hello, world", [(0, 0), (1, 0), (3, 1), (4, 1)], "<b>hello</b>, world"),  # noqa: RUF001
        ("Hello <i>world</i>", "你好世界", [(0, 0), (0, 1), (1, 2), (1, 3)], "你好<i>世界</i>"),
        ("<b>x3</b> cats", "猫がx3匹", [(0, 2), (1, 0)], "猫が<b>x3</b>匹"),
        ("<u>water</u> is", "น้ำคือ", [(0, 0), (0, 1), (1, 2)], "<u>น้ำ</u>คือ"),
        ("<b>that</b>, x", "ที่ x", [(0, 0), (1, 1)], "<b>ที่</b> x"),
        ("<b>water</b>, x", "पानी, x", [(0, 0), (1, 1)], "<b>पानी</b>, x"),
        ("<b>ga</b> x", "\u304b\u3099x", [(0, 0), (1, 1)], "<b>\u304b\u3099</b>x"),
    ],
)
def test_render_places_tags_around_letters_in_scripts_without_spaces(source, target, links, expected):
    assert Document("html", source).render([target], [links]) == expected


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("open <b>Writer 7.4</b>, then <i>Calc</i>", "Calc nach Writer (7.4)", "<i>Calc</i> nach <b>Writer (7.4</b>)"),
        ("<b>Calc</b> and Calc", "calc und Calc", "<b>calc</b> und Calc"),
        # Once here and twice there: the links decide, which are wrong here.
        ("<b>Calc</b> and it", "Calc und Calc", "Calc <b>und</b> Calc"),
    ],
)
def test_render_links_equal_names_and_numbers(source, target, expected):
    wrong = [(0, 1), (1, 0), (2, 2)]
    assert Document("html", source).render([target], [wrong]) == expected


@pytest.mark.parametrize("splits", [False, True])
def test_translate_documents_links_letters_by_tokens(model, tokenizer, splits, monkeypatch):
    """As if no spaces divided the words of Latin letters."""
    modules = ("translate_documents", "linked_words", "tag_placement")
    for module in modules:
        pattern = f"hf_vanilla_transformer.apps.documents.{module}.WORDS_AND_LETTERS"
        monkeypatch.setattr(pattern, re.compile(r"[a-zü]|[^\sa-zü]+"))
    sources = [SENTENCES[name][0] for name in ("one word", "two words", "nested")]
    expected = [SENTENCES[name][1] for name in ("one word", "two words", "nested")]
    if splits:
        pytest.importorskip("sentencex")
        sources, expected = (["<br>".join(lines)] for lines in (sources, expected))
    assert translate_documents(model, tokenizer, sources, format="html", split_sentences=splits) == expected


def test_translate_documents_with_empty_elements(model, tokenizer):
    of_xml = {
        "three <x/>hundred<y id='1'/>": "drei <x/>hundert<y id='1'/>",
        "<x/>forty two <y/>": "<x/>zwei und vierzig <y/>",
    }
    for source, expected in of_xml.items():
        assert translate_documents(model, tokenizer, [source], format="xml") == [expected]
        of_html = [re.sub("<([xy])( id='1')?/>", '<img alt="">', text) for text in (source, expected)]
        assert translate_documents(model, tokenizer, of_html[:1], format="html") == of_html[1:]


@pytest.mark.parametrize("markup_format", ["html", "xml"])
def test_translate_documents_writes_comments_and_empty_elements_once(model, tokenizer, markup_format):
    for source in ("forty <!-- one --> two", "<b></b>forty <i> </i>two"):
        (rendered,) = translate_documents(model, tokenizer, [source], format=markup_format)
        assert re.sub(r"\s+", " ", re.sub("<.*?>", "", rendered)).strip() == "zwei und vierzig"
        assert Counter(re.findall("<.*?>", rendered)) == Counter(re.findall("<.*?>", source))


def test_translate_documents_returns_details_of_one_block(model, tokenizer):
    options = {"return_details": True, "num_return_sequences": 2}
    (rendered,) = translate_documents(model, tokenizer, ["<b>forty</b> two"], format="html", **options)
    (plain,) = translate(model, tokenizer, ["forty two"], **options)
    assert rendered.text == "zwei <b>und vierzig</b>"
    assert rendered._replace(text=plain.text, alternatives=plain.alternatives) == plain
    (other,) = rendered.alternatives
    assert re.sub("<.*?>", "", other.text) == plain.alternatives[0].text
    assert "<b>" in other.text


@pytest.mark.parametrize("splits", [False, True])
def test_translate_documents_ends_sentences_at_blocks(model, tokenizer, splits):
    pytest.importorskip("sentencex")
    source = "<p>forty\n two</p> <ul><li><b>twenty</b> one</li><li>six<br>ninety</li></ul>\n<td>four"
    (rendered,) = translate_documents(model, tokenizer, [source], format="html", split_sentences=splits)
    assert rendered == (
        "<p>zwei und vierzig</p> <ul><li>ein <b>und zwanzig</b></li><li>sechs<br>neunzig</li></ul>\nvier"
    )
    assert translate_documents(model, tokenizer, ["<td>four<td>two"], format="html") == ["<td>vier</td><td>zwei</td>"]
    source = "<doc>\n <p>forty\n two</p>\n <p>six</p></doc>"
    (rendered,) = translate_documents(model, tokenizer, [source], format="xml", split_sentences=splits)
    assert rendered == "<doc>\n <p>zwei und vierzig</p>\n <p>sechs</p></doc>"


def test_translate_documents_returns_details_of_several_blocks(model, tokenizer):
    options = {"return_details": True, "num_return_sequences": 2}
    (rendered,) = translate_documents(model, tokenizer, ["<p><b>forty</b> two</p><p>six</p>"], format="html", **options)
    plain = translate(model, tokenizer, ["forty two", "six"], **options)
    assert rendered.text == "<p>zwei <b>und vierzig</b></p><p>sechs</p>"
    assert rendered.tokens == plain[0].tokens + plain[1].tokens
    assert rendered.score == pytest.approx(plain[0].score + plain[1].score, abs=1e-5)
    second = re.sub("<.*?>", " ", rendered.alternatives[0].text).split()
    assert second == [word for translation in plain for word in translation.alternatives[0].text.split()]


@pytest.mark.parametrize("markup_format", ["html", "xml"])
def test_translate_documents_limits_the_depth(model, tokenizer, markup_format):
    for depth in (200, 201):
        source = "<b>" * depth + "one" + "</b>" * depth
        if depth == 200:
            assert translate_documents(model, tokenizer, [source], format=markup_format) == [
                source.replace("one", "eins")
            ]
        else:
            with pytest.raises(ValueError, match="more than 200 tags are inside each other, the last one '<b>'"):
                translate_documents(model, tokenizer, [source], format=markup_format)


def test_translate_documents_copies_blank_documents(model, tokenizer):
    blank = ["", "<br>", " <b> </b>", "<p>&nbsp;</p>", "<p> | </p>\n", "{{name}} https://a.b/c"]
    assert translate_documents(model, tokenizer, [*blank, "two"], format="html") == [*blank, "zwei"]


# Rendering: links by hand.


def render(markup_format, source, target, *links):
    document = Document(markup_format, source)
    (text,) = document.texts
    return text, document.render([target], [list(links)])


def test_render_unescapes_and_escapes_entities():
    text, rendered = render("html", "a&nbsp;&lt; b &gt; &amp; &#233;", "x\N{NO-BREAK SPACE}< y > & é")
    assert text == "a\N{NO-BREAK SPACE}< b > & é"
    assert rendered == "x&nbsp;&lt; y &gt; &amp; é"
    assert render("html", "AT&T ?a=1&b=2", "AT&T ?a=1&b=2") == ("AT&T ?a=1&b=2", "AT&amp;T ?a=1&amp;b=2")
    assert render("xml", "1 &lt; <b>2</b> &#x26; <![CDATA[<3>]]>", "1 < 2 & <3>", (2, 2))[1] == (
        "1 &lt; <b>2</b> &amp; &lt;3&gt;"
    )


def test_render_xml_with_prolog():
    prolog = '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE r SYSTEM "a.dtd">'
    text, rendered = render("xml", f"{prolog}\n<r>one <b>two</b></r>", "zwei eins", (0, 1), (1, 0))
    assert text == "one two"
    assert rendered == f"{prolog}\n<r><b>zwei</b> eins</r>"
    assert ElementTree.fromstring(rendered.encode())[0].text == "zwei"


@pytest.mark.parametrize(
    "prolog",
    [
        "<!-- > -->\n<!DOCTYPE r>",
        '<?xml version="1.0"?>\n<!-- a -->\n<?xml-stylesheet href="a.xsl"?>\n<!DOCTYPE r SYSTEM "a>b.dtd">',
        "<!DOCTYPE r PUBLIC '-//A//' \"a>b.dtd\" [\n<!ELEMENT r ANY>\n] >",
        "<!-- a -->\n" * 100,
        '<?xml version="1.0"?>',
    ],
)
def test_render_keeps_prologs_of_xml(prolog):
    document = f"{prolog}\n<r>one</r>"
    assert ElementTree.fromstring(document).text == "one"
    assert identical("xml", document) == (document, ["one"])


def test_render_keeps_texts_with_entities_whole():
    for source in (
        "<p>\n    one &amp; two\n  </p>",
        "<p>a&amp;b <b>c</b>&lt;\n</p>",
        "<p>one http://a.b/?c=1&amp;d=e</p>",
    ):
        assert identical("xml", source)[0] == source
    assert identical("xml", "<p>one http://a.b/?c=1&amp;d=e</p>")[1] == ["one"]
    assert identical("xml", "<p>&#160;one&#160;&#160;</p>")[0] == "<p>\xa0one\xa0\xa0</p>"
    assert identical("xml", '\ufeff<?xml version="1.0"?><p>one</p>')[0] == '<?xml version="1.0"?><p>one</p>'


def test_render_replaces_characters_that_xml_forbids():
    assert render("xml", "<b>one</b>", "e\x0bi\x00ns", (0, 0))[1] == "<b>e i ns</b>"


def test_render_leaves_punctuation_outside():
    links = [(0, 1), (1, 0)]
    assert render("xml", "(<b>one</b>), <i>two!</i>", "zwei! (eins),", *links)[1] == "<i>zwei!</i> (<b>eins</b>),"
    assert render("xml", "<b>(one),</b> two", "zwei (eins),", *links)[1] == "zwei <b>(eins),</b>"


def test_render_places_a_tag_around_the_larger_part():
    """The tag goes around the larger part, over a word without links, and not over words of others."""
    links = [(0, 0), (0, 1), (0, 3), (1, 4), (0, 5)]
    assert render("xml", "<b>one</b> two", "a b - c D e", *links)[1] == "<b>a b - c</b> D e"


def test_render_ends_a_tag_at_many_unlinked_words():
    """A tag reaches over a few of them to another word of its own, but not over many."""
    for count, expected in ((9, "<b>a {} z</b> two"), (11, "<b>a</b> {} z two")):
        target = f"a {' '.join('-' * count)} z two"
        links = [(0, 0), (0, count + 1), (1, count + 2)]
        assert render("xml", "<b>one</b> two", target, *links)[1] == expected.format(" ".join("-" * count))


def test_render_gives_a_word_to_one_of_two_adjacent_tags():
    assert render("xml", "<b>one</b><i>two</i>", "eins", (0, 0))[1] == "<b>eins</b><i></i>"
    assert render("xml", "<b>one</b> <i>two</i>", "eins", (0, 0), (1, 0))[1] == "<i></i><b>eins</b>"


def test_render_gives_a_word_of_several_tags_to_one_of_them():
    """As German compounds are, which have less than half of their links with one element."""
    links = [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)]
    rendered = render(
        "xml", "<b>three hundred</b> <i>forty</i> <u>two</u> five", "dreihundertzweiundvierzigfünf", *links
    )
    assert re.sub("<[iu]></[iu]>", "", rendered[1]) == "<b>dreihundertzweiundvierzigfünf</b>"
    # The larger one does not take it from the one that has most of it.
    rendered = render("xml", "<b>a b c</b> <i>d e</i>", "x", (0, 0), (3, 0), (4, 0))
    assert rendered[1].replace("<b></b>", "") == "<i>x</i>"


def test_render_names_and_texts_of_any_script():
    assert render("xml", "<é ü='ß'>één</é> <x/>twee", "eins zwei", (0, 0), (1, 1))[1] == "<é ü='ß'>eins</é> <x/>zwei"


def test_render_without_links():
    assert render("xml", "one <b>two</b> three", "x y")[1].replace(" ", "").replace("<b></b>", "") == "xy"


def test_render_places_tags_inside_words():
    assert render("html", "the B<sub>max</sub> rises", "Bmax steigt", (1, 0), (2, 1))[1] == "B<sub>max</sub> steigt"
    assert render("xml", "H<l>2</l>O<l>x</l> here", "hier H2Ox", (0, 1), (1, 0))[1] == "hier H<l>2</l>O<l>x</l>"
    assert render("html", "a note<sup>a</sup>.", "ein Hinweisa.", (0, 0), (1, 1))[1] == "ein Hinweis<sup>a</sup>."
    assert render("html", "<b>s</b>ave it", "speichere es", (0, 0), (1, 1))[1] == "<b>s</b>peichere es"
    assert render("html", "<b>S</b>ave it", "behalte es", (0, 0), (1, 1))[1] == "<b>behalte</b> es"


def identical(markup_format, source):
    """The document with each text as its own translation, and the texts."""
    document = Document(markup_format, source)
    links = [[(word, word) for word in range(len(text.split()))] for text in document.texts]
    return document.render(document.texts, links), document.texts


NOT_TRANSLATED = {
    "<p translate=no>one <b>two</b></p>three": ["three"],
    "<p translate=NO>one <span translate=yes>two <i>three</i></span> four</p>": ["two three"],
    "<p class='a notranslate'>one</p><p class=notranslated>two</p>": ["two"],
    "one <code>ls -l</code> two <kbd>x</kbd>, <samp>y</samp> <var>z</var>.": ["one two."],
    "<code>one</code>": [],
    "<script>one</script><style>two</style> three <template>four</template>": ["three"],
    "one <svg><title>four</title><text>two</text></svg> <math><mi>x</mi></math> three": ["one three"],
    "one <template><p>two</p></template><object>three</object> four": ["one four"],
    "{{name}} one %s, ${x} two {0} %(n)d of 50 % here": ["one two of 50 % here"],
    "one https://a.b/c?d=1&amp;e#f. two www.a.b me@a.de": ["one. two"],
    "<!-- one --> two <?php three ?> four <![CDATA[five]]>": ["two four"],
}


@pytest.mark.parametrize("source", NOT_TRANSLATED)
def test_render_keeps_what_is_not_translated(source):
    rendered, texts = identical("html", source)
    assert texts == NOT_TRANSLATED[source]
    assert tree(rendered) == tree(source)


@pytest.mark.parametrize(
    ("source", "text", "target", "links", "expected"),
    [
        # The mark of a footnote stays with its word and in its link.
        (
            'a word<sup><a href="#n">[27]</a></sup> here.',
            "a word here.",
            "hier ein Wort.",
            [(0, 1), (1, 2), (2, 0)],
            'hier ein Wort<sup><a href="#n">[27]</a></sup>.',
        ),
        (
            'It ends.<sup><a href="#n">3</a></sup> Then more',
            "It ends. Then more",
            "Dann mehr. Es endet.",
            [(0, 2), (1, 3), (2, 0), (3, 1)],
            'Dann mehr. Es endet.<sup><a href="#n">3</a></sup>',
        ),
        ("CO<sub>2</sub> rises", "CO rises", "Es steigt CO.", [(0, 2), (1, 1)], "Es steigt CO<sub>2</sub>."),
        ("<b>2024</b> | <i>5</i> files", "files", "Dateien", [(0, 0)], "<b>2024</b> | <i>5</i> Dateien"),
        ("one <a href=x>☃</a> two", "one two", "zwei eins", [(0, 1), (1, 0)], '<a href="x">☃</a> zwei eins'),
        ("in 猫<b>3</b>匹", "in 猫匹", "in 猫匹", [(0, 0), (1, 1), (2, 2)], "in 猫<b>3</b>匹"),
        # Without the element, these would be other words.
        ("H<sub>2</sub>O rises", "H2O rises", "steigt H2O", [(0, 1), (1, 0)], "steigt H<sub>2</sub>O"),
        # Where nothing has a letter, numbers are the text.
        ("<b>12</b> + <i>30</i>", "12 + 30", "30 + 12", [(0, 2), (1, 1), (2, 0)], "<i>30</i> + <b>12</b>"),
        ("<b>12 <code>x</code></b> <i></i>", "12", "zwölf", [(0, 0)], "<b>zwölf <code>x</code></b> <i></i>"),
    ],
)
def test_render_protects_elements_without_letters(source, text, target, links, expected):
    assert render("html", source, target, *links) == (text, expected)


def test_translate_documents_copies_elements_without_letters(model, tokenizer):
    source = '<p>forty two<sup><a href="#n">[27]</a></sup> <b>3</b></p><p><b>20</b>-<i>24</i></p>'
    expected = source.replace("forty two", "zwei und vierzig")
    assert translate_documents(model, tokenizer, [source], format="html") == [expected]


@pytest.mark.parametrize(
    ("source", "text", "target", "links", "expected"),
    [
        (
            "press <kbd>Ctrl</kbd>+<kbd>C</kbd> to copy",
            "press to copy",
            "zum Kopieren drücken",
            [(0, 2), (1, 0), (2, 1)],
            "<kbd>Ctrl</kbd>+<kbd>C</kbd> zum Kopieren drücken",
        ),
        (
            "select <code>A1</code>, <code>A2</code> and <code>A3</code> now",
            "select and now",
            "und wähle jetzt",
            [(0, 1), (1, 0), (2, 2)],
            "<code>A1</code>, <code>A2</code> und wähle <code>A3</code> jetzt",
        ),
        ("go to {0} + {1}, please", "go to, please", "bitte geh", [(0, 1), (2, 0)], "bitte geh {0} + {1}"),
        # A sentence ends between the two.
        (
            "run <code>a</code>. <code>b</code> is next",
            "run. is next",
            "starte. dann kommt",
            [(0, 0), (1, 2), (2, 1)],
            "starte <code>a</code>. dann <code>b</code> kommt",
        ),
        # Brackets and quotation marks around code are not left alone in the text.
        (
            'say "<code>a</code>" (<code>b</code>, {0}) now',
            "say now",
            "jetzt sag",
            [(0, 1), (1, 0)],
            '"<code>a</code>" (<code>b</code>, {0}) jetzt sag',
        ),
        ("(one <code>a</code>)", "(one)", "(eins)", [(0, 0)], "(eins <code>a</code>)"),
        # A letter follows where punctuation did.
        ("press <kbd>k</kbd>, go", "press, go", "geh press", [(0, 1), (1, 0)], "geh press <kbd>k</kbd>"),
        ("press <img>, go", "press, go", "go press jetzt", [(0, 1), (1, 0)], "go press <img> jetzt"),
        ("press <kbd>k</kbd>, go", "press, go", "go press jetzt", [(0, 1), (1, 0)], "go press <kbd>k</kbd> jetzt"),
        # Punctuation follows where a letter did.
        ("go to {0} now", "go to now", "va maintenant à !", [(0, 0), (1, 2)], "va maintenant à {0} !"),
        ("go to {0} now", "go to now", "geh jetzt zu", [(0, 0), (1, 2)], "geh jetzt zu {0}"),
    ],
)
def test_render_keeps_neighbors_of_protected_elements(source, text, target, links, expected):
    assert render("html", source, target, *links) == (text, expected)


def test_translate_documents_places_protected_elements_next_to_neighbors():
    text, rendered = render("html", "go to <code>/tmp</code> now", "jetzt geh zu", (0, 1), (1, 2), (2, 0))
    assert text == "go to now"
    assert rendered in ("<code>/tmp</code> jetzt geh zu", "jetzt geh zu <code>/tmp</code>")
    assert render("html", "Hi {{name}}, go", "geh, hallo", (0, 1), (1, 0))[1] == "geh, hallo {{name}}"
    assert render("xml", "press <kbd>a&amp;b</kbd>.", "drücke.", (0, 0))[1] == "drücke <kbd>a&amp;b</kbd>."


@pytest.mark.parametrize("markup_format", ["html", "xml"])
def test_render_keeps_readings_of_copied_texts(markup_format):
    source = "<ruby>漢<rp>(</rp><rt>kan</rt><rp>)</rp>字<rp>(</rp><rt>ji</rt><rp>)</rp></ruby> means <b>x</b>"
    links = [(0, 2), (1, 2), (2, 1), (3, 0)]
    assert render(markup_format, source, "x heißt Kanji", *links) == (
        "漢字 means x",
        "<b>x</b> heißt <ruby>Kanji</ruby>",
    )
    # The second letter is linked with the wrong one, but the text is the same.
    links = [(0, 2), (1, 2), (0, 3), (2, 1), (3, 0)]
    ruby = source.removesuffix(" means <b>x</b>")
    assert render(markup_format, source, "x heißt 漢字", *links)[1] == f"<b>x</b> heißt {ruby}"
    source = "<ruby><rb><b>漢字</b></rb><rtc><rt>kanji</rt></rtc></ruby> is"
    assert (
        render(markup_format, source, "ist Kanji", (0, 1), (1, 1), (2, 0))[1]
        == "ist <ruby><rb><b>Kanji</b></rb></ruby>"
    )
    assert identical(markup_format, source) == (source, ["漢字 is"])
    # Without a letter in the base, all of it is protected.
    assert (
        render(markup_format, "one <ruby>3<rt>san</rt></ruby>", "eins", (0, 0))[1] == "eins <ruby>3<rt>san</rt></ruby>"
    )


@pytest.mark.parametrize(
    "placeholder",
    [
        *("{name}", "%{count}", "#{name}", "%1s", "%02d", "%5d", "%ld", "%.2f", "%@", "%name%", "{0,number}", "{\\i1}"),
        "{n, plural, one {# file} other {{name} has {m, select, x {a} other {b}}}}",
    ],
)
def test_render_protects_placeholders(placeholder):
    source = escape(f"two {placeholder} one")
    expected = escape(f"{placeholder} eins zwei")
    assert render("xml", source, "eins zwei", (0, 1), (1, 0)) == ("two one", expected)


@pytest.mark.parametrize("text", ["100 % der Fälle", "a 50% discount", "5 % s", "{see below} one", "a<b and c>d"])
def test_render_does_not_protect_ordinary_text(text):
    assert identical("xml", escape(text)) == (escape(text), [text])
    assert identical("xml", f"{escape(text)} %s") == (f"{escape(text)} %s", [text])


def test_render_protects_placeholders_with_elements_inside():
    plural = "{n, plural, one {<b>#</b> file} other {<b>#</b> <i>files</i>}}"
    assert render("html", f"{plural} are left", "übrig sind", (0, 1), (1, 0)) == ("are left", f"{plural} übrig sind")
    assert render("xml", "{{ <b>a</b> }}: one", "eins", (0, 0))[1] == "{{ <b>a</b> }} eins"
    # Not closed, so that it is text.
    assert identical("html", "{n, plural, one {<b>#</b> file}")[1] == ["{n, plural, one {file}"]
    assert identical("html", "https://a.b/<b>c</b>")[1] == ["c"]
    assert identical("html", "one \ufffc <b>two</b> {0}\ufffc")[0] == "one \ufffc <b>two</b> {0}\ufffc"


def test_render_many_adjacent_placeholders():
    """Joined parts are not nested, which would exceed Python's limit of recursion."""
    source = f"one {', '.join(['{0}'] * 3000)} two"
    assert identical("html", source) == (source, ["one two"])


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        # Feeds have HTML in CDATA sections, or escaped.
        ("<![CDATA[<p>one <b>two</b></p><p>three &amp; &nbsp;</p>]]>", ["one two", "three &"]),
        ("\n  <![CDATA[<p>one</p>]]>\n", ["one"]),
        ("&lt;p&gt;one &lt;b&gt;two&lt;/b&gt;&lt;/p&gt;&lt;p&gt;three&lt;/p&gt;", ["one two", "three"]),
        ('&lt;img src="a" alt="one"&gt; two&lt;br&gt;three', ["two", "three", "one"]),
        ("one &amp;amp; two", ["one & two"]),
        ("&lt;!-- {0} --&gt; one", ["one"]),
        # Not HTML, or only a mention of it: what looks like a tag is protected.
        ("use &lt;b&gt; here", ["use here"]),
        ("&lt;p&gt;one&lt;p&gt;two", ["onetwo"]),
        ("&lt;Item&gt;one&lt;/Item&gt;", ["one"]),
        ("&lt;b&gt;one&lt;/i&gt; &lt;!-- two --&gt;", ["one"]),
        ("a &lt; b &gt; c", ["a < b > c"]),
        ("2 &lt;3&gt; 4", ["2 <3> 4"]),
    ],
)
def test_render_html_in_xml(content, texts):
    for source in (f"<d><e>{content}</e><e>six</e></d>", content):
        rendered, rendered_texts = identical("xml", source)
        assert sorted(rendered_texts) == sorted(texts + ["six"] * (source != content))
        assert rendered == source
    assert identical("xml", f'<d><e translate="no">{content}</e></d>')[1] == []


@pytest.mark.parametrize("text", ["R&amp;D; sales", "Q&amp;A;", "&amp;foo; one"])
def test_render_does_not_take_an_ampersand_for_html(text):
    """Otherwise the text would be HTML that is escaped, and its ampersand would be escaped twice."""
    source = f"<d><e>{text}</e></d>"
    assert identical("xml", source)[0] == source


def test_render_writes_punctuation_inside_of_a_tag_once():
    """Also if a mark follows whose word, in the translation, ends in the same punctuation."""
    source = "Das <i>Haus</i><code>x</code> steht"
    assert render("html", source, "Stands the house.", (0, 1), (1, 2), (2, 0))[1] == (
        "Stands the <i>house.</i><code>x</code>"
    )
    source = 'Das <i>Haus</i><a href="#a">[1]</a> steht'
    links = [(0, 0), (1, 1), (2, 2)]
    rendered = render("html", source, "The “house”. stands", *links)[1]
    assert re.sub("<.*?>", "", rendered).replace("[1]", "").replace("  ", " ") == "The “house”. stands"


def test_render_takes_escaped_html_in_xhtml_for_text():
    source = "<html><body><p>use &lt;b&gt;two&lt;/b&gt; or &lt;p&gt;</p></body></html>"
    assert identical("xml", source) == (source, ["use two or"])


def test_translate_documents_html_in_xml(model, tokenizer):
    source = '<rss><title>two</title><content>{}</content><e a="b"/></rss>'
    html = '<p title="six">forty <b>two</b><br></p><p>{} <code>x</code></p>'
    for spelled in (f"<![CDATA[{html}]]>", escape(html)):
        (rendered,) = translate_documents(model, tokenizer, [source.format(spelled.format("ten"))], format="xml")
        translated = html.replace("six", "sechs").replace("forty <b>two</b>", "<b>zwei</b> und vierzig").format("zehn")
        spelled = f"<![CDATA[{translated}]]>" if spelled.startswith("<!") else escape(translated)
        assert rendered == source.replace("two", "zwei").format(spelled)
    # Text never becomes markup, nor ends the section.
    document = Document("xml", "<d><![CDATA[<p>one</p>]]></d>")
    assert document.render(["]]><b>\x00"], [[]]) == "<d><![CDATA[<p>]]&gt;&lt;b&gt; </p>]]></d>"
    document = Document("xml", "<d><![CDATA[<script>x</script>one]]></d>")
    assert ElementTree.fromstring(document.render(["]]>"], [[]])).text == "<script>x</script>]]&gt;"


def test_document_limits_the_depth_of_html_in_xml():
    with pytest.raises(ValueError, match="more than 200 tags are inside each other"):
        Document("xml", f"<d>{escape('<b>' * 201 + 'one' + '</b>' * 201)}</d>")


def test_translate_documents_translates_attributes(model, tokenizer):
    source = (
        '<p title="forty two">six <img alt=" twenty  one " src=x></p><input placeholder=ten value=ten aria-label="">'
    )
    (rendered,) = translate_documents(model, tokenizer, [source], format="html")
    assert rendered == (
        '<p title="zwei und vierzig">sechs <img alt=" ein und zwanzig " src="x"></p>'
        '<input placeholder="zehn" value="ten" aria-label="">'
    )
    assert identical("html", "<p translate=no title=a>b</p>")[1] == []
    assert identical("xml", "<p title='a'>b</p>")[1] == ["b"]
    assert identical("xml", "<d><object>a</object><script>b</script><svg><p>c</p></svg></d>")[1] == ["a"]
    document = Document("html", '<b title="a">b</b>')
    assert document.render(["x", '"<y>"'], [[(0, 0)], []]) == '<b title="&quot;&lt;y&gt;&quot;">x</b>'
    assert document.texts == ["b", "a"]


@pytest.mark.parametrize(
    "source",
    [
        '<i class="fa"></i>&nbsp;seven',
        '<input type="text">&nbsp;x',
        "Select&nbsp;<code>A1</code>&nbsp;now",
        "«&nbsp;<code>x</code>&nbsp;» now",
        "<b>{0}</b>",
        "<b>{0}</b> one",
        "<b>{0} </b>one",
        'one <a href="https://a.b">https://a.b</a>, two',
        'one <a href="x"><img src="y"></a> two',
        '<img src="a"><img src="b"> one',
        '<img src="a"> <img src="b">one',
        "one {0}{1} two",
        "one{0} {1}two",
        "<kbd>k</kbd><sup> one</sup>",
        "<b>one </b><i> two</i>",
        "<p><b> one </b></p>",
        "<p>one <b><i>two </i></b>three</p>",
        "one<b>&nbsp;</b>two",
        "one&nbsp;<b>two</b>&nbsp;three",
        "the <code>x</code>s, <code>y</code>&nbsp;: one",
        "one<sup>2</sup> (<sup>3</sup>).",
    ],
)
def test_render_keeps_spaces_around_tags(source):
    assert identical("html", source)[0] == source
    of_xml = re.sub("(<(img|input)[^>]*)>", r"\1/>", source).replace("&nbsp;", "\xa0")
    assert identical("xml", of_xml)[0] == of_xml


def test_render_protects_placeholders_of_attributes():
    document = Document("html", '<img alt="{0}"><input title=" one  %s two. " placeholder="find {name}" value="x">')
    assert document.texts == ["one two.", "find"]
    rendered = document.render(["zwei eins.", "suche"], [[(0, 1), (1, 0)], [(0, 0)]])
    assert rendered == '<img alt="{0}"><input title=" %s zwei eins. " placeholder="suche {name}" value="x">'
    assert document.has_tags
    assert not Document("html", '<img alt="one">').has_tags


def test_render_keeps_lines_of_preformatted_text():
    source = "<pre>\n\n  one\n two <b>three\n\tfour</b></pre><textarea>\none\n  two</textarea>"
    rendered, texts = identical("html", source)
    assert texts == ["one", "two", "three", "four", "one", "two"]
    assert rendered == source.replace("<textarea>\n", "<textarea>")
    assert render("xml", "one\n  two", "eins zwei")[0] == "one two"


def test_render_keeps_white_space_between_blocks():
    for source in ("<p>&nbsp;&nbsp;one </p>\n\n  <p>two&nbsp;</p>", "<td>&nbsp;</td><td>a</td>", "<b>&nbsp;</b> one"):
        assert identical("html", source)[0] == source


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("<b>one <i>two</b> three</i>", "<b>eins <i>zwei</i></b><i> drei</i>"),  # crossing
        ("one <b>two three", "eins <b>zwei drei</b>"),  # not closed
        ("one</b> two three", "eins zwei drei"),  # not opened
        ("one <img src=a> two three", 'eins <img src="a"> zwei drei'),
        ("one <script>if (a < b && c) two()</script>two three", "eins <script>if (a < b && c) two()</script>zwei drei"),
        ("one & two < three", "eins zwei drei"),
        ("one two three<script>if (a < b)", "eins zwei drei<script>if (a < b)</script>"),
        ("one <![CDATA[x]]> two <?php y ?> three", "eins <!--[CDATA[x]]--> zwei <?php y ?> drei"),
        ('one two <a title="" HREF=b>three</a >', 'eins zwei <a title="" href="b">drei</a>'),
        ("one <i/>two three", "eins <i>zwei drei</i>"),
    ],
)
def test_render_repairs_html(source, expected):
    text, rendered = render("html", source, "eins zwei drei", (0, 0), (1, 1), (2, 2))
    assert rendered == expected
    assert not re.search("script|if|CDATA|php|title", text)


def test_render_whole_page():
    page = (
        '<!-- a --><!DOCTYPE html PUBLIC "-//W3C//DTD HTML 4.01//EN" "x.dtd">\n<html lang=en><head><title>one</title>'
        "<meta charset=utf-8></head><body onload=x><button>two</button></body></html><!-- b -->"
    )
    rendered, texts = identical("html", page)
    assert texts == ["one", "two"]
    assert tree(rendered) == tree(page)
    assert tree(identical("html", f"<!-- <!doctype x> -->{page}")[0]) == tree(f"<!-- <!doctype x> -->{page}")
    assert '<!DOCTYPE html PUBLIC "-//W3C//DTD HTML 4.01//EN" "x.dtd">' in rendered


@pytest.mark.parametrize("before", ['<?xml version="1.0"?>\n', "<!-- a -->\n<?x-y z?>", "<!-- a -->\n" * 100, "\ufeff"])
def test_render_keeps_comments_before_pages_and_fragments(before):
    page = '<!DOCTYPE html><html lang="en"><head><title>one</title></head><body class="x"><p>two</p></body></html>'
    rendered, texts = identical("html", before + page)
    assert texts == ["one", "two"]
    assert rendered.endswith(page)
    assert identical("html", f"{before}<td>one</td>")[0].endswith("<td>one</td>")


def tree(markup):
    """The tree that html5lib reads: depth, name and attributes of elements, and texts."""
    parser = html5lib.HTMLParser(tree=html5lib.getTreeBuilder("etree"))
    is_page = re.match(r"\s*(<!--.*?-->)?<(!doctype|html|body)", markup, re.IGNORECASE) is not None
    root = parser.parse(markup) if is_page else parser.parseFragment(markup)
    nodes = []

    def add(node, depth):
        is_element = isinstance(node.tag, str)
        nodes.append((depth, node.tag, sorted(map(str, node.attrib.items()))) if is_element else (depth, node.text))
        add_text(node.text if is_element else "", depth)
        for child in node:
            add(child, depth + 1)
            add_text(child.tail, depth)

    def add_text(text, depth):
        if text := "".join((text or "").split()):
            nodes.append((depth, "text", text))

    add(root, 0)
    return nodes


# What turns into live markup where a tool reads HTML otherwise than browsers do, or writes it without escaping.
HOSTILE = [
    "<textarea><svg onload=alert(1)></textarea>",
    "<title><img src=x onerror=alert(1)></title>",
    "<svg><style>&lt;img src=x onerror=alert(1)&gt;</style></svg>",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
    "<iframe><!-- </iframe><b>one</b> -->",
    "<xmp><svg/onload=alert(1)></xmp>",
    "<noembed><img src=x onerror=alert(1)></noembed>",
    "<script>a</ script><b>one</b>",
    "<style>a</ style><b>one</b>",
    "<!-- one -- ><b>two</b> --!><b>three</b>",
    "<!--><b>one</b>-->",
    "<a title='&lt;/a&gt;&lt;img src=x onerror=alert(1)&gt;'>one</a>",
    '<a title="x&quot; onclick=&quot;alert(1)">one</a>',
    "<img alt='\"><script>alert(1)</script>'>",
    "<p>&lt;script&gt;alert(1)&lt;/script&gt; one</p>",
    "<template><script>alert(1)</script><svg><style>&lt;b&gt;</style></svg></template>",
    "<svg><desc><style>&lt;b&gt;</style></desc><title><b>one</b></title></svg>",
    "<b <script>alert(1)</script>one",
    "<pre>\n\n<b>one</b></pre>",
    "&lt;<b>img</b> src=x onerror=alert(1)&gt;",
]


@pytest.mark.parametrize("source", HOSTILE)
def test_render_never_turns_text_into_markup(source):
    rendered, texts = identical("html", source)
    assert [node[:3] for node in tree(rendered) if node[1] != "text"] == [
        node[:3] for node in tree(source) if node[1] != "text"
    ]
    # Whatever a model says.
    document = Document("html", source)
    rendered = document.render(
        ["<img src=x onerror=alert(1)> \"'--></textarea></title>"] * len(texts), [[]] * len(texts)
    )
    assert [node[1] for node in tree(rendered) if node[1] != "text"] == [
        node[1] for node in tree(source) if node[1] != "text"
    ]


def test_render_rejects_html_that_browsers_would_read_otherwise():
    source = "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror=alert(1)&gt;'>one"
    with pytest.raises(ValueError, match="browsers would read the translation otherwise; correct the HTML"):
        identical("html", source)


def test_document_does_not_expand_entities_of_xml():
    bomb = '<!DOCTYPE r [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><r>&b;</r>'
    with pytest.raises(ValueError, match="is not well-formed XML"):
        Document("xml", bomb)
    with pytest.raises(ValueError, match="is not well-formed XML: undefined entity"):
        Document("xml", '<!DOCTYPE r SYSTEM "file:///etc/passwd"><r>&xxe;</r>')


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("<b>one <i>two</b> three</i>", "mismatched tag at character 16"),
        ("<b>one", "mismatched tag"),
        ("one & two", "invalid token"),
        ("one&nbsp;two", "undefined entity at character 4"),
        ("</r><r>", "junk after document element"),
        ('<!DOCTYPE r [<!ENTITY a "b">]>&a;', "undefined entity at character 31"),
        ('<!DOCTYPE r SYSTEM "a.dtd">one&a;two', "undefined entity at character 31"),
        ('<?xml version="1.0"?>\n<b>one', "mismatched tag at line 2, character 9"),
        ("<b>" + "one " * 100, "mismatched tag at character 406"),
    ],
)
def test_translate_documents_rejects_malformed_xml(model, tokenizer, source, reason):
    with pytest.raises(
        ValueError, match=rf"is not well-formed XML: .*({reason}).*; correct it, or give format=\"html\""
    ):
        translate_documents(model, tokenizer, ["one", source], format="xml")


def test_translate_documents_rejects_other_formats(model, tokenizer):
    with pytest.raises(ValueError, match="format is 'tex'; choose one of html, xml"):
        translate_documents(model, tokenizer, ["one"], format="tex")


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


@settings(max_examples=150, deadline=None)
@given(markup=MARKUP, target=TEXTS, links=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_render_any_well_formed_xml(markup, target, links):
    document = Document("xml", markup)
    assert not any("<!--" in text for text in document.texts)
    pairs = [
        [pair for pair in links if pair[0] < len(text.split()) and pair[1] < len(target.split())]
        for text in document.texts
    ]
    rendered = document.render([target] * len(pairs), pairs)
    trees = [ElementTree.fromstring(f'<r xmlns:x="u">{text}</r>') for text in (markup, rendered)]
    tags = [Counter((element.tag, str(element.attrib)) for element in tree.iter()) for tree in trees]
    assert tags[0] == tags[1]
    assert rendered.count("<!--") == markup.count("<!--")


# Without select, whose content browsers read otherwise than html5lib since 2023, and tables, for which it has a fault.
NESTED = "a b i em p div span ul li dl dt dd h1 h2 button form code sub pre textarea title script style noscript br img"
NESTED = st.sampled_from([*NESTED.split(), "hr", "nobr", "center", "section", "iframe", "object", "label"])
STARTS = st.builds("<{}{}>".format, NESTED, st.sampled_from(["", " id=x", ' lang="a &amp; b"', "/", " translate=no"]))
PARTS = [
    "one ",
    " two",
    "&lt;b>",
    "<",
    "&nbsp;",
    "<!-- c -->",
    "<![CDATA[x]]>",
    "</",
    "AT&T",
    "\n",
    "{{x}}",
    "<?a b ?>",
]
SOUP = st.lists(STARTS | NESTED.map("</{}>".format) | st.sampled_from(PARTS), max_size=14).map("".join)


@settings(max_examples=300, deadline=None)
@given(markup=SOUP, is_page=st.booleans())
def test_render_any_html_as_browsers_read_it(markup, is_page):
    if is_page:
        markup = f"<!DOCTYPE html><body>{markup}"
    rendered, _ = identical("html", markup)

    def without_texts(read):
        return [node for node in read if node[1] != "text"]

    assert without_texts(tree(rendered)) == without_texts(tree(markup))
    assert Counter("".join(node[2] for node in tree(rendered) if node[1] == "text")) == Counter(
        "".join(node[2] for node in tree(markup) if node[1] == "text")
    )
    document = Document("html", markup)
    other = document.render(["<b>&"] * len(document.texts), [[]] * len(document.texts))
    assert without_texts(tree(other)) == without_texts(tree(markup))


def test_translate_documents_places_tags_by_alignments(model, tokenizer):
    """A tag follows its word where another attention would put it elsewhere."""
    (links,) = align(model, tokenizer, ["forty two"], ["zwei und vierzig"])
    assert {(0, 2), (1, 0)} <= set(links)
    for word, expected in enumerate(("zwei <b>und vierzig</b>", "<b>zwei</b> und vierzig")):
        words = ["forty", "two"]
        words[word] = f"<b>{words[word]}</b>"
        assert translate_documents(model, tokenizer, [" ".join(words)], format="xml") == [expected]
