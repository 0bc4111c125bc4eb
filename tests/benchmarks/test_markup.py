"""How elements of pages are compared."""

import pytest


pytestmark = pytest.mark.slow

markup = pytest.importorskip("benchmarks.markup", reason="html5lib or selectolax is not installed")
REFERENCE = (
    '<h1>Save</h1><p>Klicken Sie auf <b class="x">Datei</b>, <a href="de/a.html">dann <b class="x">auf</b></a>.</p>'
)


def figures(page, by_number=True):
    (block,), (reference,) = markup.read_blocks(page)[1:], markup.read_blocks(REFERENCE)[1:]
    return markup.compare([block], [reference], by_number)


def test_words_inside_elements():
    title, text = markup.read_blocks(REFERENCE)
    assert title.text == "Save"
    assert markup.words_inside(title) == []
    assert [words for _, words in markup.words_inside(text)] == [{3: "Datei,"}, {4: "dann", 5: "auf."}, {5: "auf."}]
    # An element around the whole block is not counted, nor one around nothing.
    (whole,) = markup.read_blocks("<p><b>one two</b><i></i></p>")
    assert markup.words_inside(whole) == []


def test_exact_elements_and_words():
    assert figures(REFERENCE) == {"elements": 3, "exact": 100, "f1": 100, "blocks": 1}
    # The same link in the other language; the first <b> covers one word too many, and the other one is elsewhere.
    page = REFERENCE.replace("de/", "en-US/").replace('auf <b class="x">', '<b class="x">auf ')
    page = page.replace('dann <b class="x">auf</b>', '<b class="x">dann</b> auf')
    measured = figures(page)
    assert measured["exact"] == pytest.approx(100 / 3)
    # Shared are "Datei" in <b> and both words of the link, of 5 words here and 4 there.
    assert measured["f1"] == pytest.approx(100 * 2 * 3 / (5 + 4))
    # Blocks of other words cannot be compared by numbers.
    page = REFERENCE.replace("Klicken", "Drücken")
    assert figures(page)["blocks"] == 0
    assert figures(page, by_number=False)["f1"] == 100


def test_links_by_position():
    assert markup.by_position("a b", "c d e f") == [(0, 0), (0, 1), (1, 2), (1, 3)]
    assert markup.by_position("a b c d", "e f") == [(1, 0), (3, 1)]


def test_texts_apart():
    (block,) = markup.read_blocks("<p>one <b>two </b>three</p>")
    translated = markup.apart(block, lambda texts: [text.upper() for text in texts])
    assert translated.text == "ONE TWO THREE"
    assert [words for _, words in markup.words_inside(translated)] == [{1: "TWO"}]


def test_blocks_are_innermost():
    page = "<div><p>one</p> outside <ul><li>two<ul><li>three</li></ul></li></ul></div><td>"
    assert [block.text for block in markup.read_blocks(page)] == ["one", "three"]
