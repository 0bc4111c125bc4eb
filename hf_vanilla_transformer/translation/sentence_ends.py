"""Decide whether a sentence really ends where the sentence splitter sentencex divides a text.

sentencex wrongly divides texts after some periods:

- in ordinals ("Im 19. Jahrhundert"),
- after the numbers of list items ("1. Select"),
- in some abbreviations ("M. Dupont"),
- inside software names ("SFDocuments.Form").

The rules in this module reject such sentence ends. They never add one.

If in doubt, the rules reject an end. If two sentences stay together, the model translates them together, which does
little harm. If a sentence is divided in the middle, the model translates both halves wrongly.
"""

import re
from unicodedata import east_asian_width

from ..model.input_checks import has_letters


def _words_by_language(table: dict[str, str]) -> dict[str, frozenset[str]]:
    """Split each language's space-separated words into a set."""
    return {language: frozenset(words.split()) for language, words in table.items()}


# Languages that write ordinal numbers with a period. The word after an ordinal may begin with a capital, because the
# language capitalizes nouns, as in "19. Jahrhundert", or because the word is a name, as in "ulica 3. Maja".
_ORDINAL_LANGUAGES = frozenset(
    (
        *("bs", "cs", "da", "de", "dsb", "et", "eu", "fi", "fo", "gsw", "hr", "hsb", "hu", "is", "lb", "lv", "mk"),
        *("nb", "nds", "nn", "no", "pl", "se", "sk", "sl", "sr", "tr"),
    )
)

# Words that often begin a sentence, and that rarely follow an ordinal or an abbreviation. After an ambiguous period,
# such a word shows that a new sentence begins.
_OPENERS = _words_by_language(
    {
        "cs": (
            "a ale co do i jak je jeho jejich její jestliže jsou já každá každé každý kde kdo když my na nad ne nebo o "
            "od on ona oni ono pak po pod pokud potom pro proč před přes při tady tak tam tato ten tento ti to toto "
            "tyto v ve vy všechny z zde ze"
        ),
        "da": (
            "af alle da de den denne der derefter deres det dette disse du efter eller en er et for fra før han hans "
            "hendes her hun hvad hvem hver hvis hvor hvordan hvorfor i ikke ingen jeg man med men når og om på så til "
            "ved vi"
        ),
        "de": (
            "aber alle als also am an auch auf aus beachten bei beim bevor bitte da damit danach dann das dem den der "
            "des die dies diese diesem diesen dieser dieses doch dort drücken durch ein eine einem einen einer er es "
            "falls für geben hier ich ihr ihre im in ist jede jeder jedes kein keine klicken man mit nach nachdem nun "
            "nur ob obwohl oder sein seine seit sie siehe sind so sobald somit um und unter vom von vor wann warum was "
            "weil welche welcher welches wenn wer wie wir wo wählen während zu zum zur über"
        ),
        "en": (
            "a after all although an and as at because before both but by each for from he her here his how however i "
            "if in it its my no not of on once only or our see she since so some that the their then there these they "
            "this those to use we what when which while who why with you your"
        ),
        "es": (
            "a al allí antes aquí cada con cuando cuándo cómo de del después dónde el ella ellas ellos en entonces es "
            "esa ese eso esta estas este esto estos la las lo los luego mi no nosotros o para pero por que quién qué "
            "se si sin sobre su sus toda todas todo todos un una unas unos usted ustedes y yo él"
        ),
        "et": (
            "aga ei enne iga ja ka kes kui kuidas kus kõik ma me miks mis nad need nende on pärast seal see seega "
            "selle sest siin siis ta te tema või"
        ),
        "fi": (
            "ei ennen he hän hänen ja jokainen jos jälkeen kaikki koska kuka kun me miksi mikä minä missä miten mitä "
            "mutta myös ne niiden nuo nämä on ovat se sen siellä siis sitten tai te tuo tämä tässä täällä vain"
        ),
        "fr": (
            "alors après au aucun aucune aux avant avec c ce ces cet cette chaque comment d dans de des donc du elle "
            "elles en ensuite et ici il ils j je l la le les leur leurs lorsque là mais n nos notre nous on ou par "
            "pour pourquoi puis qu quand que qui quoi s sa ses si son sous sur tous tout toute toutes un une vos votre "
            "vous à"
        ),
        "hr": (
            "a ako ali do gdje i ili iz ja je kad kada kako kroz mi na nad ne njegov njezin njihov o od on ona oni ono "
            "ova ovaj ovdje ove ovo po pod pri prije s sa su sva svaka svaki svako sve svi ta taj tako tamo te ti tko "
            "to u vi za zatim zašto što"
        ),
        "hu": (
            "a akkor amikor az azok csak de egy előtt ez ezek ha hogyan hol itt ki mert mi minden miért nem ott után "
            "vagy van vannak és ő ők"
        ),
        "is": (
            "allir ef eftir ekki en er eru eða frá fyrir hann hvar hvað hver hvernig hér hún með og svo til um við á "
            "ég í þar það þegar þeir þessi þessir þetta þið þær"
        ),
        "it": (
            "a al che chi come con da dal del di dopo dove e egli gli i il in io l la le lei lo loro ma nel nella noi "
            "non o ogni per perché poi prima quando quella quello questa queste questi questo qui quindi se si su "
            "tutte tutti un una uno voi è"
        ),
        "lv": (
            "ar arī bet es ir ja jo jūs kad kas katra katrs kur kā kāpēc mēs nav no par pie pirms pēc tad tas te tie "
            "tikai to tur tā tās un uz vai visas visi viņa viņas viņi viņš šeit šie šis šī šīs"
        ),
        "nl": (
            "aan alle als bij daar daarna dan dat de deze die dit door dus een elke en er geen haar het hier hij hoe "
            "hun ik in je jij maar met na naar niet of om onder op over u uit van voor waar waarom wanneer wat we wie "
            "wij ze zij zijn"
        ),
        "no": (
            "alle av da de den denne der dere deres deretter det dette disse du ei eller en er et etter for fra før "
            "han hans hennes her hun hva hvem hver hvis hvor hvordan hvorfor i ikke ingen jeg man med men når og om på "
            "så til ved vi"
        ),
        "pl": (
            "a albo ale ci co czy dla do gdy gdzie i ich ja jak jego jej jest jeśli jeżeli każda każde każdy kiedy kto "
            "lub my na nad nie o od on ona one oni ono po pod potem przed przez przy się są ta tam te tego tej ten to "
            "tu w we więc wszystkie wy z ze"
        ),
        "pt": (
            "a ali antes ao aqui as cada com como da de depois do e ela elas ele eles em então essa esse esta estas "
            "este estes eu isso isto mas na nas no nos não nós o onde os ou para por quando que quem se sem seu sobre "
            "sua toda todas todo todos um uma umas uns você vocês é"
        ),
        "sk": (
            "a ak ako ale alebo cez do i ich ja je jeho jej každá každé každý kde keď kto my na nad nie o od on ona "
            "oni ono po pod potom pre pred prečo pri sú tak tam tento tieto to toto tu táto tí v vo vy všetky z zo čo"
        ),
        "sl": (
            "a ali ampak do in iz jaz je kadar kaj kako kdo kje ko mi na nad nato ne njegov njena njihov o od on ona "
            "oni ono po pod potem pred pri s so ta tako tam te ti to tukaj v vi vsak vsaka vsako vse vsi z za zakaj če "
            "čez"
        ),
        "tr": (
            "ama ancak ben bir biz bu bunlar burada eğer her hiç için kim nasıl ne neden nerede o onlar orada siz "  # noqa: RUF001
            "sonra tüm ve veya çünkü şu"
        ),
    }
)
# Both written forms of Norwegian share a list, and so do Croatian, Bosnian and Serbian in Latin script.
_OPENERS["nb"] = _OPENERS["no"]
_OPENERS["nn"] = _OPENERS["no"]
_OPENERS["bs"] = _OPENERS["hr"]
_OPENERS["sr"] = _OPENERS["hr"]

# Abbreviations that sentencex 1.0.32 lacks, in lower case and without the last period. The first set is for all
# languages.
_COMMON_ABBREVIATIONS = frozenset(("dr", "fig", "max", "min", "prof", "tel"))
_ABBREVIATIONS = _words_by_language(
    {
        "cs": "např obr str tab tzv ul č",
        "de": "exkl fa fr hr inkl",
        "en": "approx",
        "fr": "av bd m me mlle mlles mm mme mmes st ste tabl tél éd",
        "pl": "al godz inż ks maks m.in mgr np ok rys tab tj tzn ul ur zob św",
        "sk": "napr obr str tab tzv ul č",
    }
)

_ROMAN_NUMERAL = re.compile(r"[IVXLC]+")
# Ordinals from 1 to 99, and Roman numerals. Zero and larger numbers are mostly values or years, which may end a
# sentence.
_ORDINAL = re.compile(rf"[1-9]\d?|{_ROMAN_NUMERAL.pattern}")
# Initials without the last period, such as "J" or "J.-P". `[^\W\d_]` matches any letter.
_INITIALS = re.compile(r"[^\W\d_](?:\.-[^\W\d_])*")
_OPENING_MARKS = "([{\"'“„«‚‘¿¡"  # noqa: RUF001


def is_sentence_end(before: str, after: str, language: str) -> bool:
    """Return True if a sentence ends where the library sentencex divides a line into `before` and `after`.

    For example, sentencex divides a line after "Im 19. ", but the sentence continues with "Jahrhundert". The first rule
    that applies decides.

    Args:
        before (`str`): the line's text since the last accepted sentence end, with its white space.
        after (`str`): the text that follows, up to the next point where sentencex divides the line.
        language (`str`): language code of the text, such as `"de"`.
    """
    has_space_between = before[-1:].isspace() or after[:1].isspace()
    if not has_space_between:
        return _ends_without_space(before, after, language)

    # The last of these words ends in the mark that is to be judged.
    words = before.split()
    letters_and_digits_after = [character for character in after if character.isalnum()]
    if not words or not letters_and_digits_after:
        return True

    # For example, "(Dr." becomes "Dr.".
    last_word = words[-1].lstrip(_OPENING_MARKS)
    has_one_word = len(words) == 1
    if has_one_word and _is_label(last_word, language):
        # "1. Select" stays together. Labels without text, as in "1. 2. 3.", stay apart, because each may be a text.
        return not has_letters(after)

    # If the text's sentences begin with capitals, a word in lower case continues the sentence.
    if _begins_with_capital(before) and _is_small(letters_and_digits_after[0]):
        return False

    # Only periods are ambiguous; sentencex is right about question marks and other marks.
    if not last_word.endswith("."):
        return True
    return _ends_at_period(last_word.removesuffix("."), after, language)


def _ends_at_period(stem: str, after: str, language: str) -> bool:
    """Return True if the period after a word ends a sentence. `stem` is the word without this period.

    After an abbreviation, a pair of initials or an ordinal, the period ends a sentence only if the next word is one
    that often begins sentences. For initials and ordinals, this rule needs a letter at the
    start of `after`. Without one, the period ends the sentence.
    """
    if _is_abbreviation(stem, language):
        return _begins_with_opener(after, language)
    # The decision about a single initial is left to sentencex, because "A and B." may end a sentence.
    # `_INITIALS` matches "J" and "J.-P", and the hyphen excludes the single initial.
    is_pair_of_initials = "-" in stem and _INITIALS.fullmatch(stem) is not None
    is_ordinal = language in _ORDINAL_LANGUAGES and _ORDINAL.fullmatch(stem) is not None
    if (is_pair_of_initials or is_ordinal) and after[:1].isalpha():
        return _begins_with_opener(after, language)
    return True


def _ends_without_space(before: str, after: str, language: str) -> bool:
    """Return True if a punctuation mark at the end of `before` ends a sentence, although no white space follows it.

    An ASCII mark without a space is probably part of a name, such as "SFDocuments.Form" or a file name. It ends a
    sentence only if the next word is one that often begins sentences, because then the space was probably forgotten.
    """
    mark = before[-1:]
    # Names do not contain the sentence-final marks of Chinese, Hindi and other scripts. The ellipsis is
    # treated like an ASCII mark, because languages with Latin letters use it, too.
    if not mark.isascii() and mark != "…":
        return True
    # Chinese and Japanese, whose characters are wide, are written without spaces between sentences.
    if after and east_asian_width(after[0]) in ("W", "F"):
        return True

    begins_with_capital = after[:1].isupper()
    # If the next word is followed by white space, it is a whole word. In "example.The.end", "The" is part of a name.
    begins_with_whole_word = re.match(r"\w+\s", after) is not None
    return begins_with_capital and begins_with_whole_word and _begins_with_opener(after, language)


def _is_label(word: str, language: str) -> bool:
    """Return True if a single word is not a sentence but a label of the text that follows, as in "1. Select".

    Labels are numbers, abbreviations, punctuation, and letters or Roman numerals that mark list items.
    """
    if not has_letters(word):
        return True
    if not word.endswith((".", ")")):
        return False
    # For example, "a)" and "IV." become "a" and "IV".
    stem = word.rstrip(".)")
    if _INITIALS.fullmatch(stem) or _ROMAN_NUMERAL.fullmatch(stem):
        return True
    return _is_abbreviation(stem, language)


def _is_abbreviation(stem: str, language: str) -> bool:
    """Return True if a word, given without its last period, is a known abbreviation in a language."""
    lowercase = stem.lower()
    return lowercase in _COMMON_ABBREVIATIONS or lowercase in _ABBREVIATIONS.get(language, ())


def _begins_with_opener(text: str, language: str) -> bool:
    """Return True if the first word of a text is one that often begins sentences in its language."""
    first_word = re.search(r"\w+", text)
    if first_word is None:
        return False
    # `lower()` turns the Turkish letter U+0130 into "i" and a combining dot, but the word lists have no such dot.
    lowercase = first_word[0].lower().replace("\u0307", "")
    return lowercase in _OPENERS.get(language, ())


def _begins_with_capital(text: str) -> bool:
    """Return True if the first letter of a text is a capital.

    Letters without upper and lower case, such as Chinese ones, are skipped. If the first letter is a capital, the
    text's sentences begin with capitals, so a lower-case letter does not begin a new sentence.
    """
    for letter in text:
        if letter.isupper():
            return True
        if _is_small(letter):
            return False
    return False


def _is_small(letter: str) -> bool:
    """Return True if a letter is in lower case and belongs to a script whose sentences begin with capitals.

    Georgian is excluded: Unicode classifies its letters as lower case, but its sentences do not begin with capitals.
    """
    # The title case of a Georgian letter is the letter itself.
    return letter.islower() and letter.title() != letter
