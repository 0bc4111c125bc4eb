"""Ends of sentences: texts whose ends people marked, and the kinds of periods that end none."""

import pytest

from benchmarks.sentence_ends import (
    LANGUAGES,
    count_judged_ends,
    count_own_text,
    split_by_package,
    split_by_sentencex,
)


pytest.importorskip("sentencex")


def sentences(text, language):
    return [part.strip() for part in split_by_package(text, language)]


@pytest.mark.parametrize("language", LANGUAGES)
def test_split_text_divides_no_sentence_of_the_marked_texts(language):
    counts = count_own_text(split_by_package, "seen", language)
    alone = count_own_text(split_by_sentencex, "seen", language)
    assert counts.wrong == 0
    assert alone.wrong >= 9
    assert counts.recall > 89


@pytest.mark.parametrize("language", LANGUAGES)
def test_split_text_divides_few_sentences_of_unknown_texts(language):
    counts = count_own_text(split_by_package, "unseen", language)
    alone = count_own_text(split_by_sentencex, "unseen", language)
    assert counts.wrong <= alone.wrong / 4
    assert counts.precision > 85
    assert counts.recall > 80


@pytest.mark.parametrize("language", ["en", "de"])
def test_split_text_of_software_documentation(libreoffice_help, language):
    lines = (libreoffice_help / f"train.{language}").read_text(encoding="utf-8").split("\n")
    counts = count_judged_ends(split_by_package, language, lines)
    alone = count_judged_ends(split_by_sentencex, language, lines)
    assert (alone.missed, alone.right + alone.wrong) == (0, 300)
    assert counts.wrong <= 1 < alone.wrong / 10
    assert counts.missed <= 1


@pytest.mark.parametrize(
    ("language", "text"),
    [
        # Ordinals, before a small letter and before a noun or a name.
        ("de", "Im 19. Jahrhundert begann der 2. Weltkrieg nicht."),
        ("deu_Latn", "Der 2. Weltkrieg und die Zeit von der 10. bis zur 20. Periode."),
        ("de", "Ludwig XIV. König von Frankreich."),
        ("da", "Den 2. Verdenskrig begyndte i det 20. århundrede."),
        ("nb", "Han kom den 17. Mai."),
        ("fi", "Hän syntyi 3. toukokuuta ja koki 2. Maailmansodan."),
        ("cs", "Dne 3. května začala 2. Světová válka."),
        ("sk", "V 19. storočí a v 2. Polovici."),
        ("pl", "W 2. połowie roku przy ulicy 3. Maja."),
        ("hu", "A 2. Világháború a 20. században volt."),
        ("et", "Ta sündis 3. mail ja elas 19. Sajandil."),
        ("lv", "Viņš dzīvoja 19. gadsimtā un 2. Pasaules karā."),
        ("hr", "Ulica 1. Maja je iz 19. stoljeća."),
        ("sl", "Bilo je 3. Maja v 19. stoletju."),
        ("sr", "У 19. веку."),  # noqa: RUF001
        ("tr", "Almanya 2. Dünya Savaşı'nı 20. yüzyılda kaybetti."),  # noqa: RUF001
        # Numbers, letters and abbreviations before a sentence.
        ("en", "1. Select the cells."),
        ("en", "a. Select the cells."),
        ("en", "IV. The cells."),
        ("en", "(2) Select the cells."),
        ("en", "... after the document is saved."),
        ("fr", "M. Dupont est le voisin de M. Lambert et du Dr. Leroy."),
        ("fr", "J.-P. Moreau parle."),
        ("de", "Max. Länge der Fa. Klein."),
        # Names of software.
        ("en", "Call ScriptForge.Services or FORECAST.ETS.ADD for a #VALUE! error in the For...Next loop."),
        ("xx", "The class com.sun.star.util.DateTime is there."),
    ],
)
def test_split_text_keeps_periods_inside_sentences(language, text):
    assert sentences(text, language) == [text]


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("de", ["Der Standardwert ist 1.", "Der Höchstwert ist 10.", "Wenn er fehlt, gilt 0.", "Zahlen sind möglich."]),
        ("de", ["Er kam 1998.", "Danach ging er."]),
        ("pl", ["Wartość to 10.", "Jeśli nie, to 5."]),
        ("tr", ["Değer 3.", "İçin bu doğru."]),
        ("en", ["See section 2.", "Values are in row 5.", "Cells are empty."]),
        ("en", ["Press Enter.", "2. Press Esc."]),
        # Texts in small letters, and scripts without capitals.
        ("en", ["forty-two.", "one hundred and one.", "six.", "ten."]),
        ("ka", ["Windows არის.", "მეორე წინადადება."]),
        ("hi", ["यह है।", "वह है।"]),
        # Symbols alone, which are copied.
        ("en", ["Great!", "🙂"]),
        # Numbers apart from others may be an enumeration.
        ("en", ["5.", "6.", "7."]),
        ("en", ["The box is selected.", "If not, select it."]),
    ],
)
def test_split_text_keeps_correct_ends(language, expected):
    assert sentences(" ".join(expected), language) == expected


def test_split_text_at_ends_without_a_space():
    assert sentences("你好!我是。今天3.5元。", "zh") == ["你好!", "我是。", "今天3.5元。"]
    # The space was forgotten.
    assert sentences("The box is selected.If it is not, select it.", "en") == [
        "The box is selected.",
        "If it is not, select it.",
    ]
