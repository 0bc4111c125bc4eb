import sys
import unicodedata

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer, DataCollatorForSeq2Seq

from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerTokenizer, load_pairs, train_tokenizer


ODD_TEXTS = [
    "a small house",
    " leading and  double spaces ",
    "two\nlines\r\n\ttab",
    "a </s> b",
    "<s><pad></s>",
    "Häuser, naïve, \u00a0 no-break",
    "e\u0301 is not \u00e9",
    "日本語 🏠👩‍👩‍👧 עברית \u202e",
    "\x00\x07\ufffd\u2028",
    "",
    "    ",
    ".",
    "don't won ' t ,x !",
]


CHARACTERS = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code <= 0xDFFF]
WHITE_SPACE = [c for c in CHARACTERS if c.isspace() and not "\x1c" <= c <= "\x1f"]
# Controls, and what Unicode calls format characters but for those that change how a text is read.
IGNORED = [c for c in CHARACTERS if unicodedata.category(c) == "Cc" and c not in WHITE_SPACE]
IGNORED += map(chr, (0xAD, 0x61C, 0x180E, 0x200B, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2060, 0x2065)))
IGNORED += map(chr, (*range(0x2066, 0x2070), 0xFEFF))


@pytest.fixture(scope="module")
def lossless() -> VanillaTransformerTokenizer:
    return train_tokenizer(["a small house", "zwei Häuser"] * 5, 280, show_progress=False, normalization="none")


def restored(tokenizer, texts):
    return tokenizer.batch_decode(tokenizer(texts).input_ids, skip_special_tokens=True)


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_any_text_comes_back(lossless, text):
    ids = lossless(text).input_ids
    assert lossless.decode(ids, skip_special_tokens=True) == text
    assert ids[-1] == lossless.eos_token_id
    assert not set(ids[:-1]) & {0, 1, 2}
    assert lossless(text_target=text).input_ids == ids


def test_every_unicode_character_comes_back(lossless):
    texts = ["".join(CHARACTERS[start : start + 256]) for start in range(0, len(CHARACTERS), 256)]
    assert restored(lossless, texts) == texts


def normalizer(normalization):
    tokenizer = train_tokenizer(["a b"], 260, show_progress=False, normalization=normalization)
    return tokenizer.backend_tokenizer.normalizer.normalize_str


def test_normalization_of_every_unicode_character():
    normalize = normalizer("nfc")
    expected = {**dict.fromkeys(IGNORED, "ab"), **dict.fromkeys(WHITE_SPACE, "a b")}
    for character in CHARACTERS:
        text = f"a{character}b"
        assert normalize(text) == (expected.get(character) or unicodedata.normalize("NFC", text))


@pytest.mark.parametrize(
    ("text", "nfc", "nfkc"),
    [
        ("\ufeff two \u2028\t houses\r\n", "two houses", "two houses"),
        ("e\u00ad\u0301\u200b", "é", "é"),
        ("\u200b \ufeff\x00", "", ""),
        ("ﬁve m\u00b2 \uff21", "ﬁve m² \uff21", "five m2 A"),
        ("👩\u200d🚀 क्\u200cष", "👩\u200d🚀 क्\u200cष", "👩 🚀 क् ष"),
        ("a\u00a8", "a\u00a8", "a \u0308"),
    ],
)
def test_normalizations(text, nfc, nfkc):
    for normalization, expected in (("nfc", nfc), ("nfkc", nfkc), ("none", text)):
        tokenizer = train_tokenizer(["a b"], 260, show_progress=False, normalization=normalization)
        assert restored(tokenizer, [text]) == [expected]


@pytest.mark.parametrize("normalization", ["nfc", "nfkc"])
def test_normalizing_twice_changes_nothing(normalization):
    normalize = normalizer(normalization)
    for character in CHARACTERS:
        once = normalize(f"{character}a{character}\u0301{character}b{character}")
        assert normalize(once) == once


@pytest.mark.parametrize("whitespace_words", [False, True])
def test_normalization_travels_in_tokenizer_json(tmp_path, whitespace_words):
    trained = train_tokenizer(["a small house"] * 3, 280, show_progress=False, whitespace_words=whitespace_words)
    trained.save_pretrained(tmp_path)
    stock = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for tokenizer in (trained, AutoTokenizer.from_pretrained(tmp_path)):
        assert tokenizer("\ufeffa\u00a0 sm\u00adall  house\r").input_ids == tokenizer("a small house").input_ids
    assert stock.encode("\ufeffa\u00a0 sm\u00adall  house\r").ids == trained("a small house").input_ids


def test_clean_text_has_the_tokens_of_a_lossless_tokenizer():
    numbers = load_pairs("numbers", train_size=300)["train"]
    texts = [*numbers["source"], *numbers["target"]]
    normalizing = train_tokenizer(texts, 350, show_progress=False, normalization="nfc")
    lossless = train_tokenizer(texts, 350, show_progress=False, normalization="none")
    assert normalizing.get_vocab() == lossless.get_vocab()
    assert normalizing(texts).input_ids == lossless(texts).input_ids


def test_an_unknown_normalization():
    with pytest.raises(ValueError, match="normalization is 'nfd'; choose one of nfc, nfkc, none"):
        train_tokenizer(["a"], show_progress=False, normalization="nfd")


WORDS = ["a t-shirt &apos;s", "&apos;s a t-shirt", "it &apos;s @-@ &quot; t-shirt &quot;"] * 3


@pytest.fixture(scope="module")
def of_words() -> VanillaTransformerTokenizer:
    return train_tokenizer(WORDS, 300, show_progress=False, whitespace_words=True, normalization="none")


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_any_text_comes_back_from_whitespace_words(of_words, text):
    ids = of_words(text).input_ids
    assert of_words.decode(ids, skip_special_tokens=True) == text
    assert ids[-1] == of_words.eos_token_id
    assert not set(ids[:-1]) & {0, 1, 2}


def test_whitespace_words_are_cut_at_blanks_alone(of_words, tokenizer, tmp_path):
    of_words.save_pretrained(tmp_path)
    for saved in (of_words, AutoTokenizer.from_pretrained(tmp_path)):
        tokens = saved.convert_ids_to_tokens(saved("&apos;s a t-shirt").input_ids)
        assert tokens == ["Ġ&apos;s", "Ġa", "Ġt-shirt", "</s>"]
        # The first word of a sentence is the word that it is elsewhere.
        assert saved("t-shirt a").input_ids == [*saved("a t-shirt").input_ids[1::-1], saved.eos_token_id]


@pytest.mark.parametrize("normalization", ["nfc", "none"])
@pytest.mark.parametrize("whitespace_words", [False, True])
@pytest.mark.parametrize("name", ["<pad>", "<s>", "</s>"])
def test_special_tokens_are_not_learned_from_text(whitespace_words, normalization, name):
    options = {"whitespace_words": whitespace_words, "normalization": normalization}
    texts = [f"{name}word{name}", f"a {name} b", f"x{name}", name] * 10
    tokenizer = train_tokenizer(texts, 400, show_progress=False, **options)
    for text in texts:
        ids = tokenizer(text).input_ids
        assert not set(ids[:-1]) & {0, 1, 2}
        assert tokenizer.decode(ids, skip_special_tokens=True) == text


@pytest.mark.parametrize("whitespace_words", [False, True])
def test_added_special_tokens_are_not_in_text(tmp_path, whitespace_words):
    names = ["<2de>", "ouse", "\u0120house", "[X]"]
    texts = ["x<2de>a", "x<2de>b <2de>", "a house", "mouse"] * 9
    tokenizer = train_tokenizer(texts, 400, show_progress=False, whitespace_words=whitespace_words)
    tokenizer.add_special_tokens({"additional_special_tokens": names})
    tokenizer.save_pretrained(tmp_path)
    for other_tokenizer in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        special = other_tokenizer.convert_tokens_to_ids(names)
        assert other_tokenizer.all_special_ids[-4:] == special
        for text in (*texts, " ".join(names), "".join(names)):
            ids = other_tokenizer(text).input_ids
            assert not set(ids[:-1]) & {0, 1, 2, *special}
            assert other_tokenizer.decode(ids, skip_special_tokens=True) == text
    assert len(AutoTokenizer.from_pretrained(tmp_path)) == len(tokenizer)
    with pytest.raises(ValueError, match="'a' stands for a byte of text"):
        tokenizer.add_special_tokens({"additional_special_tokens": ["a"]})


@pytest.mark.parametrize("whitespace_words", [False, True])
def test_tokenised_text_comes_back_word_for_word(multi30k, whitespace_words):
    files = sorted((multi30k / "tok").glob("val.*.tok.*"))
    if not files:
        pytest.skip("there is no tokenised text in MULTI30K_DIR/tok")
    lines = [line for file in files for line in file.read_text(encoding="utf-8").split("\n")]
    tokenizer = train_tokenizer(lines, 2000, show_progress=False, whitespace_words=whitespace_words)
    assert restored(tokenizer, lines) == lines


def test_characters_are_tokens(tmp_path):
    texts = ["grün, größer"] * 3 + ["ab cd"] * 9
    tokenizer = train_tokenizer(texts, characters=True)
    for text in ("grün ab", "a  b"):
        clean = " ".join(text.split())
        assert len(tokenizer(text).input_ids) == len(clean) + 1
        assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == clean
    rare = tokenizer("é").input_ids
    assert len(rare) == 3
    assert tokenizer.decode(rare, skip_special_tokens=True) == "é"
    tokenizer.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)(texts).input_ids == tokenizer(texts).input_ids


def test_special_tokens_are_those_of_a_new_config(tokenizer):
    config = VanillaTransformerConfig()
    assert tokenizer.pad_token_id == config.pad_token_id
    assert tokenizer.bos_token_id == config.bos_token_id == config.decoder_start_token_id
    assert tokenizer.eos_token_id == config.eos_token_id


def test_sources_and_targets_together(tokenizer):
    batch = tokenizer(["a small house", "two"], text_target=["ein kleines Haus", "zwei"])
    assert set(batch) == {"input_ids", "attention_mask", "labels"}
    assert all(ids[-1] == tokenizer.eos_token_id for ids in (*batch["input_ids"], *batch["labels"]))


def test_the_stock_collator_pads(tokenizer):
    encoded = tokenizer(["a small house", "two"], text_target=["ein kleines Haus", "zwei"])
    batch = DataCollatorForSeq2Seq(tokenizer)([{name: encoded[name][row] for name in encoded} for row in (0, 1)])
    assert batch["input_ids"][1, -1] == tokenizer.pad_token_id
    assert batch["labels"][1, -1] == -100


def test_everything_is_in_tokenizer_json(lossless, tmp_path):
    lossless.save_pretrained(tmp_path)
    VanillaTransformerConfig(vocab_size=len(lossless)).save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.glob("tokenizer*")} == {"tokenizer.json", "tokenizer_config.json"}
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert type(loaded) is VanillaTransformerTokenizer
    for text in ODD_TEXTS:
        assert loaded(text).input_ids == lossless(text).input_ids
        assert loaded.decode(loaded(text).input_ids, skip_special_tokens=True) == text


def test_frequent_pairs_become_tokens(tokenizer):
    assert tokenizer.tokenize("a small house") == ["a", "Ġsmall", "Ġhouse"]
    assert len(tokenizer) > 259


@pytest.mark.parametrize(("settings", "least"), [({}, 2), ({"min_frequency": 4}, 4)])
def test_a_pair_becomes_a_token_that_is_as_frequent_as_asked_for(settings, least):
    sizes = [len(train_tokenizer(["ab"] * count, 300, show_progress=False, **settings)) for count in (least - 1, least)]
    assert sizes == [259, 260]


def test_training_is_deterministic():
    texts = ["one two three", "two three four"] * 3
    first, second = (train_tokenizer(texts, vocab_size=280, show_progress=False) for _ in range(2))
    assert first.get_vocab() == second.get_vocab()


def test_vocab_size_includes_everything():
    assert len(train_tokenizer(["aaaa bbbb"] * 9, vocab_size=261, show_progress=False)) == 261


def test_too_small_a_vocabulary():
    with pytest.raises(ValueError, match="vocab_size is 258; it must be at least 259"):
        train_tokenizer(["a"], vocab_size=258)


@pytest.mark.parametrize("texts", [["a", None], [1], [["a", "b"]]])
def test_only_strings_are_a_corpus(texts):
    with pytest.raises(TypeError, match=r"texts contains .*; give strings"):
        train_tokenizer(texts, show_progress=False)


def test_one_string_is_no_corpus():
    with pytest.raises(TypeError, match="texts is one string; give a list of sentences"):
        train_tokenizer("a small house")


def test_train_tokenizer_ignores_texts_of_more_than_4192_bytes():
    sentences = [f"a sentence with the number {number}" for number in range(100)]
    encoded_file = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo=" * 1000
    vocabulary = train_tokenizer(sentences, 400).get_vocab()
    assert train_tokenizer([*sentences, encoded_file], 400).get_vocab() == vocabulary
    # The limit is a number of bytes.
    assert train_tokenizer([*sentences, "xyz" * 1397 + "x"], 400).get_vocab() != vocabulary
    assert train_tokenizer([*sentences, "ä" * 2097], 400).get_vocab() == vocabulary
    assert train_tokenizer([*sentences, "ä" * 2096], 400).get_vocab() != vocabulary
    with pytest.raises(ValueError, match="all texts have more than 4,192 bytes"):
        train_tokenizer([encoded_file], 400)
