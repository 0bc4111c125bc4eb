"""Whatever comes in at a door, a result or one sentence comes out.

`make test` tries a few hundred cases in all, `make fuzz` 10,000, or FUZZ_CASES.
"""

import contextlib
import gzip
import html
import io
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
from huggingface_hub.errors import StrictDataclassError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

from hf_vanilla_transformer import (
    Glossary,
    TwoVocabularyTokenizer,
    average_checkpoints,
    load_pairs,
    plan,
    score,
    train_tokenizer,
    translate_documents,
)
from hf_vanilla_transformer import align as align_words
from hf_vanilla_transformer import translate as translate_sentences
from hf_vanilla_transformer.apps.cli import convert, evaluate, translate
from hf_vanilla_transformer.apps.cli.parser import given_arguments
from hf_vanilla_transformer.apps.documents.markup_document import Document
from hf_vanilla_transformer.apps.terms import glossary as glossary_module
from hf_vanilla_transformer.apps.terms.constrained_beam_search import ConstrainedBeamSearch
from hf_vanilla_transformer.data.cleaning import clean_pairs, hold_out
from hf_vanilla_transformer.hub import user_cache
from hf_vanilla_transformer.model.beam_search import BeamSearch
from hf_vanilla_transformer.model.input_checks import is_blank, sides_of
from hf_vanilla_transformer.support.recipes import format_recipe
from hf_vanilla_transformer.training.run_arguments import Settings
from hf_vanilla_transformer.translation.concurrent_use import encode
from hf_vanilla_transformer.translation.words_of_tokens import WORDS_AND_LETTERS, TokenTexts
from tests.apps.conversion.fsmt import fsmt_model, write_tokenizer
from tests.apps.conversion.opus_mt import write_opus_mt
from tests.fuzz.values import (
    CELLS,
    FRAGMENTS,
    HOSTILE,
    IGNORED,
    LETTERLESS,
    MARKUP,
    NOISY,
    SENTENCES,
    VALUES,
    WORDS_OF_NUMBERS,
    arguments_of,
    change_layout,
    changed_fields,
    damages,
    spell_fragment,
    typed_values,
)
from tests.models import decisive_model, normalizer
from tests.translation.test_words_of_tokens import words_by_offsets


FIXTURES = Path(__file__).parents[1] / "fixtures"
MODEL = FIXTURES / "numbers_tiny"
MARIAN, FAIRSEQ = FIXTURES / "marian" / "tied_relu", FIXTURES / "fairseq" / "joint"
DOORS = 32
# Arguments of generate() that take numbers; not those of length, which take time.
SETTINGS = ("num_beams", "num_return_sequences", "length_penalty", "length_penalty_type", "early_stopping")
# Arguments of `train` that a plan fits others to.
PLANNED = ("num_train_epochs", "max_steps", "tokens_per_batch", "per_device_train_batch_size", "max_tokens")
PLANNED += (
    "tokens_per_update",
    "gradient_accumulation_steps",
    "warmup_steps",
    "average_last",
    "save_total_limit",
    "eval_strategy",
)
CASES = int(os.environ.get("FUZZ_CASES", "300"))
# Errors of Python's functions for wrong values; those of the command line end in SystemExit.
ERRORS = (ImportError, OSError, StrictDataclassError, TypeError, ValueError)


def fuzz(*arguments: Any) -> Callable:
    """`given` with this door's share of the cases."""
    share = settings(
        max_examples=max(1, CASES // DOORS),
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    return lambda test: share(given(*arguments)(test))


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(MODEL)


@pytest.fixture(scope="module")
def model():
    return AutoModelForSeq2SeqLM.from_pretrained(MODEL)


@pytest.fixture(scope="module")
def whitespace_tokenizer():
    options = {"whitespace_words": True, "normalization": "none"}
    return train_tokenizer(["a b c", "d e f"], vocab_size=270, show_progress=False, **options)


@pytest.fixture(scope="module")
def normalizing_tokenizer():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.backend_tokenizer.normalizer = normalizer()
    return tokenizer


@pytest.fixture(autouse=True, scope="module")
def quiet():
    """Without progress bars, and with a cache of its own, because every file is another one."""
    with tempfile.TemporaryDirectory() as cache, pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", Path(cache))
        datasets.disable_progress_bars()
        yield
        datasets.enable_progress_bars()


@contextlib.contextmanager
def one_sentence() -> Iterator[None]:
    """A result, or an error that says something."""
    try:
        yield
    except ERRORS as error:
        assert str(error).strip(), repr(error)  # noqa: PT017


def run(main: Callable, *arguments: object) -> None:
    """A verb of the command line: it ends well, or with one sentence and no traceback."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as end:
            message = end.code if isinstance(end.code, str) else errors.getvalue()
            assert message.strip()
            assert "Traceback" not in message


@contextlib.contextmanager
def changed_model(name: str, content: bytes | None, source: Path = MODEL) -> Iterator[Path]:
    """A copy of a folder in which a file has another content."""
    with tempfile.TemporaryDirectory() as parent:
        folder = shutil.copytree(source, Path(parent, "model"))
        (folder / name).unlink(missing_ok=True)
        if content is not None:
            (folder / name).write_bytes(content)
        yield folder


@fuzz(st.lists(SENTENCES, max_size=3))
def test_tokenizer_round_trip(tokenizer, whitespace_tokenizer, sentences):
    for any_tokenizer in (tokenizer, whitespace_tokenizer):
        for sentence in sentences:
            ids = any_tokenizer(sentence).input_ids
            assert ids[-1] == any_tokenizer.eos_token_id
            assert any_tokenizer.decode(ids, skip_special_tokens=True) == sentence


@pytest.fixture(scope="module")
def normalizing():
    options = {"vocab_size": 260, "show_progress": False}
    return {form: train_tokenizer(["a b"], **options, normalization=form) for form in ("nfc", "nfkc")}


@fuzz(SENTENCES, st.sampled_from(["nfc", "nfkc"]), st.lists(st.tuples(st.integers(0, 30), IGNORED), max_size=5))
def test_normalization(normalizing, sentence, form, noise):
    tokenizer, noisy = normalizing[form], sentence
    for place, character in noise:
        noisy = noisy[:place] + character + noisy[place:]
    ids = tokenizer(sentence).input_ids
    assert tokenizer(f"\u2028{noisy} \ufeff\u00a0\r").input_ids == ids
    assert tokenizer(noisy.replace(" ", "\u00a0 \t")).input_ids == ids
    assert tokenizer(tokenizer.decode(ids, skip_special_tokens=True)).input_ids == ids


@fuzz(st.lists(HOSTILE, min_size=1, max_size=5), st.booleans(), st.sampled_from(["nfc", "nfkc", "none"]))
def test_tokenizers_trained_on_hostile_text(texts, whitespace_words, form):
    options = {"whitespace_words": whitespace_words, "normalization": form, "show_progress": False}
    tokenizer = train_tokenizer(texts * 2, 400, **options)
    for text in texts:
        ids = tokenizer(text).input_ids
        assert ids[-1] == tokenizer.eos_token_id
        assert not set(ids[:-1]) & set(tokenizer.all_special_ids)
        assert form != "none" or tokenizer.decode(ids, skip_special_tokens=True) == text


@fuzz(st.lists(SENTENCES, max_size=3), st.integers(1, 3))
def test_translate(model, tokenizer, sentences, num_beams):
    translations = translate_sentences(model, tokenizer, sentences, num_beams=num_beams, max_new_tokens=4)
    assert len(translations) == len(sentences)
    for sentence, translation in zip(sentences, translations, strict=True):
        assert isinstance(translation, str)
        assert translation == sentence or not is_blank(sentence)


@pytest.fixture(scope="module")
def copying_tokenizer():
    """Of a folder whose training pairs translate no texts without letters."""
    return AutoTokenizer.from_pretrained(MODEL, translated_letterless_share=0.0)


@fuzz(st.lists(LETTERLESS, min_size=1, max_size=3), st.sampled_from(["html", "xml"]))
def test_texts_without_letters(model, copying_tokenizer, texts, markup_format):
    tokenizer = copying_tokenizer
    assert translate_sentences(model, tokenizer, texts) == texts
    assert translate_sentences(model, tokenizer, texts, split_sentences=True) == texts
    translator = pipeline("translation", model=model, tokenizer=tokenizer)
    assert [output["translation_text"] for output in translator(texts, max_new_tokens=4)] == texts
    # Parts that look like placeholders are no text of a document.
    pages = [f"<p>{html.escape(re.sub('[{}%$]', '', text))}</p>" for text in texts]
    for page in pages:
        with one_sentence():
            (translated,) = translate_documents(model, tokenizer, [page], markup_format, split_sentences=True)
            assert Document(markup_format, translated).texts == Document(markup_format, page).texts


@fuzz(st.lists(SENTENCES, min_size=1, max_size=3))
def test_pipeline(model, tokenizer, sentences):
    translator = pipeline("translation", model=model, tokenizer=tokenizer)
    with one_sentence():
        outputs = translator(sentences, max_new_tokens=4)
        assert [list(output) for output in outputs] == [["translation_text"]] * len(sentences)


@fuzz(st.lists(st.tuples(SENTENCES, SENTENCES), max_size=3))
def test_score(model, tokenizer, pairs):
    scores = score(model, tokenizer, [source for source, _ in pairs], [target for _, target in pairs])
    assert all(result.total <= 0 and len(result.tokens) == len(result.log_probs) for result in scores)


@fuzz(
    st.sampled_from(["csv", "tsv", "json", "jsonl", "parquet", "csv.gz", "jsonl.gz", "en", "en.gz"]),
    st.one_of(st.binary(max_size=60), SENTENCES.map(str.encode)),
    st.sampled_from([b"", b"source,target\n", b"source\ttarget\n", b'{"source": "a", "target": "b"}\n', b"PAR1", b"["]),
)
def test_load_pairs(suffix, content, start):
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{name}.{suffix}") for name in (("a", "b") if suffix.startswith("en") else ("a",))]
        for path in paths:
            path.write_bytes(start + content)
        with one_sentence():
            pairs = load_pairs(train_files=paths)["train"]
            assert set(pairs.column_names) == {"source", "target"}
            assert all(isinstance(text, str) for column in pairs[:].values() for text in column)


@fuzz(st.lists(st.tuples(SENTENCES, SENTENCES), min_size=1, max_size=4))
def test_load_pairs_written_as_json_lines(pairs):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pairs.jsonl")
        lines = [json.dumps({"source": source, "target": target}) for source, target in pairs]
        path.write_text("\n".join(lines), encoding="utf-8")
        loaded = load_pairs(train_files=path)["train"]
        assert list(zip(loaded["source"], loaded["target"], strict=True)) == pairs


@fuzz(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=4), st.booleans())
def test_load_pairs_written_as_tsv(pairs, is_compressed):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pairs.tsv.gz" if is_compressed else "pairs.tsv")
        content = "".join(f"{source}\t{target}\n" for source, target in [("source", "target"), *pairs]).encode()
        path.write_bytes(gzip.compress(content) if is_compressed else content)
        loaded = load_pairs(train_files=path)["train"]
        assert list(zip(loaded["source"], loaded["target"], strict=True)) == pairs


@fuzz(st.lists(st.tuples(SENTENCES, SENTENCES), max_size=12), st.lists(st.integers(0, 11), max_size=12))
def test_clean_pairs(texts, repeated):
    texts = texts + [texts[index] for index in repeated if index < len(texts)]
    numbered = [{"number": n, "source": source, "target": target} for n, (source, target) in enumerate(texts)]
    with one_sentence():
        pairs = datasets.Dataset.from_list(numbered)
        cleaned, counts = clean_pairs(pairs, [pairs.select([0])])
        assert len(cleaned) + sum(counts.values()) == len(pairs)
        assert cleaned.to_list() == [row for row in numbered if row["number"] in cleaned["number"][:]]
        assert clean_pairs(cleaned, [pairs.select([0])])[0] is cleaned
        train, validation = hold_out(cleaned, 1)
        assert sorted(train["number"][:] + validation["number"][:]) == cleaned["number"][:]


@fuzz(
    st.lists(st.tuples(SENTENCES, SENTENCES), min_size=9, max_size=14),
    VALUES,
    st.dictionaries(st.sampled_from(PLANNED), VALUES, max_size=2),
)
def test_plan(texts, tflops, arguments):
    sources, targets = zip(*texts, strict=True)
    pairs = datasets.DatasetDict(train=datasets.Dataset.from_dict({"source": sources, "target": targets}))
    with one_sentence():
        planned = plan(pairs, tflops=tflops or 1, **arguments)
        assert planned.costs.updates >= 1
        assert planned.costs.seconds >= 0
        assert not planned.arguments.keys() & arguments.keys()


@fuzz(changed_fields(MODEL / "config.json", ("d_k", "d_v", "source_vocab_size", "auto_map", "quantization_config")))
def test_config(content):
    with changed_model("config.json", json.dumps(content).encode()) as folder:
        run(translate.main, "seven", "--model_name_or_path", folder, "--max_new_tokens", 4)


@fuzz(
    changed_fields(
        MODEL / "generation_config.json",
        (
            "max_length",
            "do_sample",
            "top_k",
            "max_new_tokens",
            "min_length",
            "forced_bos_token_id",
            "num_return_sequences",
        ),
    )
)
def test_generation_config(content):
    with changed_model("generation_config.json", json.dumps(content).encode()) as folder:
        run(translate.main, "seven", "--model_name_or_path", folder, "--max_new_tokens", 4)


@fuzz(changed_fields(MODEL / "tokenizer_config.json", ("truncation_side", "model_max_length", "split_special_tokens")))
def test_tokenizer_config(content):
    with changed_model("tokenizer_config.json", json.dumps(content).encode()) as folder:
        run(translate.main, "seven", "--model_name_or_path", folder, "--max_new_tokens", 4)


@fuzz(damages(MODEL))
def test_a_damaged_folder(damage):
    with changed_model(*damage) as folder, tempfile.TemporaryDirectory() as parent:
        run(translate.main, "seven", "--model_name_or_path", folder, "--max_new_tokens", 4)
        with one_sentence():
            average_checkpoints([folder], Path(parent, "average"))


@fuzz(damages(MARIAN))
def test_a_damaged_model_of_marian(damage):
    pytest.importorskip("sentencepiece")
    with changed_model(*damage, MARIAN) as folder:
        run(convert.main, "--from", "marian", "--input", folder, "--output", folder / "converted")


@fuzz(damages(FAIRSEQ))
def test_a_damaged_model_of_fairseq(damage):
    pytest.importorskip("sacremoses")
    with changed_model(*damage, FAIRSEQ) as folder:
        run(convert.main, "--from", "fairseq", "--input", folder, "--output", folder / "converted")


@pytest.fixture(scope="module")
def fsmt_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fsmt")
    fsmt_model().save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@fuzz(st.data())
def test_a_damaged_model_of_fsmt(fsmt_folder, data):
    with changed_model(*data.draw(damages(fsmt_folder)), fsmt_folder) as folder:
        run(convert.main, "--from", "fsmt", "--input", folder, "--output", folder / "converted")


@pytest.fixture(scope="module")
def to_convert(fsmt_folder, tmp_path_factory):
    """A folder of each system."""
    pytest.importorskip("sentencepiece")
    folders = [write_opus_mt(tmp_path_factory.mktemp("opus") / "opus-mt-en-de"), fsmt_folder]
    return [*folders, MARIAN, MARIAN.with_name("separate_relu"), FAIRSEQ]


@fuzz(st.data())
def test_layouts_of_folders_to_convert(to_convert, data):
    """What was converted can be translated with; everything else is one sentence."""
    with tempfile.TemporaryDirectory() as parent:
        folder = shutil.copytree(data.draw(st.sampled_from(to_convert)), Path(parent, "x y"))
        for _ in range(data.draw(st.integers(0, 3))):
            change_layout(data.draw, folder, to_convert)
        output = Path(parent, "out")
        system = data.draw(st.just("auto") | st.sampled_from(["hf_marian", "marian", "fsmt", "fairseq"]))
        run(convert.main, "--from", system, "--input", folder, "--output", output)
        if output.exists():
            with contextlib.redirect_stdout(io.StringIO()):
                translate.main(["A dog runs.", "--model_name_or_path", str(output), "--max_new_tokens", "4"])


@pytest.fixture(scope="module")
def two_vocabularies(tmp_path_factory):
    folder, options = tmp_path_factory.mktemp("two"), {"vocab_size": 270, "show_progress": False}
    tokenizer = TwoVocabularyTokenizer.of(*(train_tokenizer([text], **options) for text in ("seven", "sieben")))
    sizes = [len(side) for side in sides_of(tokenizer)]
    model = decisive_model(vocab_size=sizes[1], source_vocab_size=sizes[0], d_k=None, d_v=None)
    for saved in (model, tokenizer):
        saved.save_pretrained(folder)
    return folder


@fuzz(st.data())
def test_a_damaged_folder_with_two_vocabularies(two_vocabularies, data):
    with changed_model(*data.draw(damages(two_vocabularies)), two_vocabularies) as folder:
        run(translate.main, "seven", "--model_name_or_path", folder, "--max_new_tokens", 4)


@fuzz(damages(MODEL))
def test_a_damaged_folder_for_an_engine(damage):
    pytest.importorskip("ctranslate2")
    with changed_model(*damage) as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(user_cache, "CACHE", folder / "cache")
        of_engine = ["--engine", "ctranslate2", "--max_new_tokens", 4]
        run(translate.main, "seven", "--model_name_or_path", folder, *of_engine)


@fuzz(st.dictionaries(st.sampled_from(SETTINGS), VALUES, min_size=1, max_size=3))
def test_settings_of_the_search(model, tokenizer, settings):
    with one_sentence():
        translate_sentences(model, tokenizer, ["seven"], **{"max_new_tokens": 4, **settings})


@fuzz(
    st.lists(st.tuples(SENTENCES, SENTENCES), min_size=1, max_size=3),
    st.sampled_from(["a.en", "a.csv", "a.jsonl"]),
    st.sampled_from(["13a", "zh", "char"]),
)
def test_evaluate(pairs, name, tokenize):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes("\n".join(f"{source},{target}" for source, target in pairs).encode())
        files = [path, path.with_name("b.de")] if name == "a.en" else [path]
        if name == "a.en":
            shutil.copy(*files)
        run(evaluate.main, "--model_name_or_path", MODEL, "--max_new_tokens", 4, "--test_file", *files)
        options = ["--translations_file", path, "--references_file", path, path, "--against", path]
        run(evaluate.main, *options, "--bleu_tokenize", tokenize, "--test_file", *files)


@fuzz(st.lists(MARKUP, max_size=3), st.sampled_from(["html", "xml"]), st.booleans())
def test_markup(model, tokenizer, sentences, markup_format, splits):
    options = {"format": markup_format, "split_sentences": splits, "num_beams": 1, "max_new_tokens": 4}
    with one_sentence():
        assert len(translate_documents(model, tokenizer, sentences, **options)) == len(sentences)


@fuzz(FRAGMENTS, st.sampled_from(["html", "xml"]))
def test_documents_whose_texts_are_their_own_translations(parts, markup_format):
    """Such a document comes back character by character, but for the lengths of runs of white space.

    A run of spaces, tabs and line breaks is one space for the reader of a page, and for the model, too. No-break spaces
    are characters of their own, and neither they nor ordinary spaces may appear, vanish, or pass to the other side of
    a tag.
    """
    pytest.importorskip("selectolax")
    markup = spell_fragment(parts, markup_format)
    document = Document(markup_format, markup)
    word_counts = [len(WORDS_AND_LETTERS.findall(text)) for text in document.texts]
    rendered = document.render(document.texts, [[(word, word) for word in range(count)] for count in word_counts])
    assert re.sub(r"[ \t\n]+", " ", rendered) == re.sub(r"[ \t\n]+", " ", markup)


@fuzz(st.lists(SENTENCES, max_size=3), st.dictionaries(SENTENCES, SENTENCES | st.lists(SENTENCES, max_size=2)))
def test_texts_and_terms(model, tokenizer, texts, terms):
    with one_sentence():
        glossary = Glossary(terms, tokenizer)
        translations = translate_sentences(
            model, tokenizer, texts, split_sentences=True, glossary=glossary, return_details=True, max_new_tokens=4
        )
        assert len(translations) == len(texts)


@fuzz(st.lists(NOISY, max_size=3), st.dictionaries(NOISY, WORDS_OF_NUMBERS, max_size=2), st.booleans(), st.booleans())
def test_noisy_texts(model, tokenizer, normalizing_tokenizer, texts, terms, is_normalized, splits):
    """With terms and alignments, then as markup."""
    tokenizer = normalizing_tokenizer if is_normalized else tokenizer
    options = {"num_beams": 2, "max_new_tokens": 6, "split_sentences": splits}
    with one_sentence():
        glossary = Glossary(terms, tokenizer)
        translations = translate_sentences(model, tokenizer, texts, glossary=glossary, return_details=True, **options)
        for text, translation in zip(texts, translations, strict=True):
            assert not is_blank(text) or translation.text == text
            for source, target in translation.alignment or []:
                assert 0 <= source < len(text.split())
                assert 0 <= target < len(translation.text.split())
        links = align_words(model, tokenizer, texts, [translation.text for translation in translations])
        assert len(links) == len(texts)
        for text in [] if is_normalized else texts:
            words = TokenTexts(tokenizer, False).find_words(text, tokenizer(text).input_ids)
            assert words == words_by_offsets(tokenizer, text)
    marked = [f"<b>{html.escape(text)}</b><br/>" for text in texts]
    for markup_format in ("html", "xml"):
        with one_sentence():
            for translation in translate_documents(model, tokenizer, marked, markup_format, **options):
                assert translation.count("<b>") == translation.count("</b>") == translation.count("<br") == 1


@fuzz(st.lists(SENTENCES | st.dictionaries(st.sampled_from(["source", "id", ""]), VALUES).map(json.dumps), max_size=3))
def test_json_lines(lines):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "in.jsonl")
        path.write_bytes("\n".join(lines).encode())
        options = ["--json_lines", "--source_column", "source", "--max_new_tokens", 4]
        run(translate.main, "--model_name_or_path", MODEL, "--input", path, *options)


@fuzz(arguments_of(Settings))
def test_arguments_written_to_a_file_come_back(arguments):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "arguments.yaml")
        path.write_text(format_recipe(arguments), encoding="utf-8")
        read = given_arguments(Settings, "", ["--config", str(path)])
    if isinstance(arguments.get("generation_config"), str):
        # A path, which Python normalizes: "" is ".", and "a/" is "a".
        arguments["generation_config"] = str(Path(arguments["generation_config"]))
    # Compared as JSON, because NaN is not equal to itself, and paths and choices are written as text.
    assert json.dumps(read, default=str, sort_keys=True) == json.dumps(arguments, default=str, sort_keys=True)


@fuzz(st.data())
def test_values_typed_into_a_file_are_read_as_on_the_command_line(data):
    name, text = data.draw(typed_values(Settings))
    try:
        expected = given_arguments(Settings, "", [f"--{name}={text}"])
    except ValueError:
        expected = None
    for content in (f"{name}: {text}", f"{name}: {json.dumps(text)}"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "arguments.yaml")
            path.write_text(content, encoding="utf-8")
            if expected is None:
                with pytest.raises(ValueError, match=name):
                    given_arguments(Settings, "", ["--config", str(path)])
            else:
                assert given_arguments(Settings, "", ["--config", str(path)]) == expected


@contextlib.contextmanager
def counting_work(model: Any) -> Iterator[dict[str, float]]:
    """Count what the searches of a model compute: the hypotheses that they extend, and their work with phrases.

    The work of a hypothesis is 1, and 1 more for every 1,000 of the numbers that its phrases take, as
    `TextLimits.check_terms` counts it; the phrases of a batch are counted as `generate()` gets them, each as large as
    the largest.
    """
    work = {"hypotheses": 0.0, "with phrases": 0.0}
    generate = model.generate
    numbers_of_phrases = 0

    def generate_with_phrases(*arguments: Any, **options: Any) -> Any:
        nonlocal numbers_of_phrases
        search = options.get("custom_generate")
        batch = [] if search is None else search.phrases
        positions, tokens, phrases = [0], [0], [0]
        for phrases_of_sentence in batch:
            alternatives = [tokens for phrase in phrases_of_sentence for tokens in phrase]
            distinct = {json.dumps(sorted(phrase)) for phrase in phrases_of_sentence}
            positions.append(sum(map(len, alternatives)))
            tokens.append(len({token for alternative in alternatives for token in alternative}) + 1)
            phrases.append(len(distinct))
        numbers_of_phrases = max(positions) + max(tokens) * max(phrases) if any(batch) else 0
        return generate(*arguments, **options)

    def counting(extend: Callable) -> Callable:
        def extend_and_count(search: Any, log_probs: Any, *arguments: Any, **options: Any) -> Any:
            work["hypotheses"] += len(log_probs)
            work["with phrases"] += len(log_probs) * (1 + numbers_of_phrases / 1000)
            return extend(search, log_probs, *arguments, **options)

        return extend_and_count

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "generate", generate_with_phrases, raising=False)
        for search in (BeamSearch, ConstrainedBeamSearch):
            patch.setattr(search, "extend", counting(search.extend))
        yield work


# Short ones, and long ones that can be drawn fast.
FORMS = st.tuples(st.text("abcdefghij klmnß日", min_size=1, max_size=6).filter(str.strip), st.integers(1, 40)).map(
    lambda part: part[0] * part[1]
)
TERMS = st.dictionaries(
    st.sampled_from(["one", "two", "three", "forty", "hundred", "and"]),
    st.lists(FORMS, min_size=1, max_size=9).map(lambda forms: ["x", *forms]),
    min_size=1,
)
TEXTS_WITH_TERMS = st.lists(
    st.lists(st.sampled_from(["one", "two", "three", "forty", "hundred", "and", "seven"]), min_size=1, max_size=9),
    min_size=1,
    max_size=5,
)


@fuzz(TERMS, TEXTS_WITH_TERMS, st.integers(2, 6), st.none() | st.integers(5, 40))
def test_costs_of_glossaries(model, tokenizer, terms, words, num_beams, max_new_tokens):
    """The server computes a work before it translates that is at least half of what the search then takes."""
    pytest.importorskip("prometheus_client")
    from hf_vanilla_transformer.apps.serving.service import CardFacts, Service, ServingSettings, _with_glossary

    texts = [" ".join(words_of_text) for words_of_text in words]
    options = {"num_beams": num_beams, "max_new_tokens": max_new_tokens}
    service = Service(model, tokenizer, ServingSettings(max_work=10**9), CardFacts("numbers"))
    with pytest.MonkeyPatch.context() as patch:
        encoded = []
        patch.setattr(
            glossary_module, "encode", lambda *arguments, **options: encode_and_note(encoded, *arguments, **options)
        )
        with_glossary = _with_glossary({**options, "glossary": terms}, tokenizer)
    forms = [form for translations in terms.values() for form in translations]
    # The time that it takes to make the glossary: four contexts for each form, and few calls of the tokenizer.
    assert len(encoded) <= 2 + 4 * len(forms) // 256
    assert sum(len(text) for batch in encoded for text in batch) <= 4 * sum(len(form) + 2 for form in forms) + 10
    codes = service._codes(options)
    _, work = service._measure(texts, codes, with_glossary)
    _, work_of_texts = service._measure(texts, codes, options)
    with counting_work(model) as done, contextlib.suppress(ValueError):
        translate_sentences(model, tokenizer, texts, **with_glossary)
    assert done["hypotheses"] <= work_of_texts <= work
    assert done["with phrases"] <= 2 * work


def encode_and_note(encoded: list[list[str]], tokenizer: Any, **options: Any) -> Any:
    """Encode texts as the package does, and add them to a list."""
    encoded.append(options["text_target"])
    return encode(tokenizer, **options)
