"""Models that Marian trained say here what Marian says: tests/fixtures/marian has four, with Marian's own output."""

import json
import re
import shutil
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import score, translate
from hf_vanilla_transformer.apps.cli.main import main
from hf_vanilla_transformer.apps.conversion import marian, weight_transforms
from hf_vanilla_transformer.apps.conversion.hf_marian import from_hf_marian
from hf_vanilla_transformer.apps.conversion.marian import from_marian
from hf_vanilla_transformer.apps.conversion.parity_certificate import ScoredHypothesis, add_scores
from hf_vanilla_transformer.apps.serving.model_card_facts import read_card
from tests.apps.conversion.texts import texts
from tests.apps.conversion.tuning import check_fine_tuning


FIXTURES = Path(__file__).parents[2] / "fixtures" / "marian"
NAMES = ("tied_relu", "tied_swish", "separate_relu", "separate_swish")
pytestmark = pytest.mark.skipif(find_spec("sentencepiece") is None, reason="needs sentencepiece")


def expected(name: str) -> dict:
    return json.loads((FIXTURES / name / "expected.json").read_text(encoding="utf-8"))


def scored_hypotheses(recorded: dict) -> list[ScoredHypothesis]:
    """The n-best lists that Marian translated and scored."""
    return [
        ScoredHypothesis(recorded["sentences"][number], tokens, log_prob)
        for number, tokens, log_prob in recorded["n_best"]
    ]


@pytest.fixture(scope="module")
def converted(tmp_path_factory) -> dict[str, Path]:
    parent = tmp_path_factory.mktemp("marian")
    return {
        name: from_marian(str(FIXTURES / name), str(parent / name), sentences=expected(name)["sentences"])
        for name in NAMES
    }


def load(folder):
    return AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.bridge
def test_add_scores_equals_marian(converted, name):
    recorded = expected(name)
    hypotheses = scored_hypotheses(recorded)
    assert len(hypotheses) == 80
    parity = {"log_probs": {}, "tolerance": 1e-4}
    parity = add_scores(parity, *load(converted[name]), hypotheses)
    assert 0 < parity["log_probs"]["marian"] < 1e-5
    assert parity["equal"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.bridge
def test_from_marian_translations(converted, name):
    recorded, (model, tokenizer) = expected(name), load(converted[name])
    sources = tokenizer(recorded["sentences"]).input_ids
    for search, settings in (("greedy", {"num_beams": 1}), ("beam", {})):
        our_translations = translate(model, tokenizer, recorded["sentences"], **settings)
        marian_translations = recorded[search]
        targets = tokenizer(text_target=marian_translations).input_ids
        # Marian truncates translations of three times as many tokens as the source; a text may need fewer tokens.
        whole = [row for row, ids in enumerate(targets) if len(ids) <= 2 * len(sources[row])]
        assert len(whole) >= 10
        different = [row for row in whole if our_translations[row] != marian_translations[row]]
        assert not different or (search == "beam" and len(different) <= 1)
        # Marian's beam shrinks with every finished hypothesis, so it may miss a better one.
        for row in different:
            source = [recorded["sentences"][row]]
            (our_score,) = score(model, tokenizer, source, [our_translations[row]])
            (marian_score,) = score(model, tokenizer, source, [marian_translations[row]])
            assert our_score.total > marian_score.total


@pytest.mark.parametrize("name", NAMES)
def test_score_with_target_vocabulary_of_marian(converted, name):
    recorded = expected(name)
    our_scores = score(*load(converted[name]), recorded["sentences"], recorded["beam"])
    best = {}
    for number, _, total in recorded["n_best"]:
        best.setdefault(number, total)
    # The tokens of a text are those that Marian generated, unless a text has several segmentations.
    close = [abs(our_score.total - best[number]) < 1e-3 for number, our_score in enumerate(our_scores)]
    assert sum(close) >= 0.9 * len(close)


@pytest.mark.bridge
def test_from_marian_certificate(converted):
    certificate = json.loads((converted["tied_relu"] / "parity.json").read_text())
    assert certificate["equal"]
    assert certificate["system"] == "marian"
    assert set(certificate["sha256"]) == {"model.npz", "vocab.spm"}
    assert certificate["float64"]["log_probs"]["random"] <= certificate["float64"]["tolerance"] == 1e-9
    if find_spec("pymarian") is None:
        assert certificate["oracle"].endswith("pymarian, which is Marian itself, is not installed")
    else:
        assert 0 < certificate["log_probs"]["marian"] < 1e-5


@pytest.mark.parametrize("name", ["tied_relu", "separate_swish"])
@pytest.mark.bridge
def test_from_marian_tokenizer_equals_sentencepiece(converted, name):
    """As Marian reads text and writes it, special tokens in a text included."""
    import sentencepiece

    _, paths = marian.find_files(FIXTURES / name)
    tokenizer = AutoTokenizer.from_pretrained(converted[name])
    for language, argument, path in zip(("en", "de"), ("text", "text_target"), paths, strict=True):
        oracle = sentencepiece.SentencePieceProcessor(model_file=str(path))
        lines = [*texts(language), "two </s> three <unk> <pad> <s>", ""]
        expected = oracle.encode(lines)
        assert tokenizer(**{argument: lines}).input_ids == [[*row, oracle.eos_id()] for row in expected]
    # Text in place of tokens that Marian does not know is another convention in each library.
    rows_of_known_tokens = [row for row in expected if oracle.unk_id() not in row]
    assert len(rows_of_known_tokens) >= len(texts()) // 4
    rows_with_eos = [[*row, 0] for row in rows_of_known_tokens]
    decoded = tokenizer.batch_decode(rows_with_eos, skip_special_tokens=True)
    assert decoded == oracle.decode(rows_of_known_tokens)


@pytest.mark.parametrize("name", ["tied_swish", "separate_relu"])
def test_from_marian_equals_from_hf_marian(converted, tmp_path, name):
    """As the Hub has OPUS-MT: transformers' positions, or, restored, those that Marian trained with."""
    weights, vocabularies = marian.find_files(FIXTURES / name)
    arrays, settings = marian.read_arrays(weights)
    source = tmp_path / "opus-mt"
    source.mkdir()
    files, pad = marian.tokenizer_files(vocabularies, arrays)
    for file_name, content in files.items():
        (source / file_name).write_bytes(content)
    marian.build_marian(arrays, settings, pad, weights).save_pretrained(source)
    model, tokenizer = load(converted[name])
    sentences = expected(name)["sentences"]
    targets = translate(model, tokenizer, sentences, num_beams=1)
    exact = score(model, tokenizer, sentences, targets)
    for positions, largest in (("marian", 1e-4), ("hf", 1)):
        folder = from_hf_marian(str(source), str(tmp_path / positions), positions=positions)
        assert json.loads((folder / "parity.json").read_text())["equal"]
        scores = score(*load(folder), sentences, targets)
        pairs = zip(scores, exact, strict=True)
        difference = max(abs(pair_score.total - exact_score.total) for pair_score, exact_score in pairs)
        assert difference < largest
        assert (difference < 1e-4) == (positions == "marian")


@pytest.mark.parametrize("name", ["tied_relu", "separate_swish"])
def test_from_marian_then_fine_tune(converted, tmp_path, name):
    recorded = expected(name)
    # Other translations than the model's own, so that there is something to learn.
    check_fine_tuning(converted[name], recorded["sentences"][:8], recorded["greedy"][1:9], tmp_path)


def copied(tmp_path, name="tied_relu") -> Path:
    return Path(shutil.copytree(FIXTURES / name, tmp_path / name))


def rewrite(folder, drop=(), **changes) -> None:
    """Write the weights anew with other settings and arrays."""
    with np.load(folder / "model.npz") as stored:
        arrays = dict(stored)
    settings = yaml.safe_load(bytes(arrays["special:model.yml"]).rstrip(b"\0").decode())
    settings |= {name: value for name, value in changes.items() if not isinstance(value, np.ndarray)}
    arrays |= {name: value for name, value in changes.items() if isinstance(value, np.ndarray)}
    arrays["special:model.yml"] = np.frombuffer(yaml.safe_dump(settings).encode() + b"\0", dtype=np.int8)
    np.savez(folder / "model.npz", **{name: array for name, array in arrays.items() if name not in drop})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"transformer-preprocess": "n"}, "transformer-preprocess is 'n', but must be ''. CTranslate2's ct2-marian"),
        ({"transformer-decoder-autoreg": "rnn"}, "transformer-decoder-autoreg is 'rnn', but must be 'self-attention'"),
        ({"transformer-postprocess-top": "n"}, "transformer-postprocess-top is 'n'"),
        ({"transformer-train-position-embeddings": True}, "transformer-train-position-embeddings is True"),
        # It writes translations from their ends.
        ({"right-left": True}, "right-left is True, but must be False"),
        ({"transformer-ffn-activation": "gelu"}, "ffn-activation is 'gelu', but must be relu or swish"),
        (
            {"type": "s2s", "transformer-preprocess": "n", "transformer-ffn-activation": "gelu"},
            "npz cannot be converted: type is 's2s', but must be 'transformer'; transformer-pre.* 'n', .*; .* 'gelu'",
        ),
        ({"encoder_l1_extra": np.zeros(3, np.float32)}, "has encoder_l1_extra, which cannot be converted"),
        ({"drop": ("encoder_l2_ffn_W1",)}, "lacks the array 'encoder_l2_ffn_W1'; use a complete model"),
        ({"drop": ("special:model.yml",)}, r"has no special:model\.yml; it is not a model of Marian"),
        ({"encoder_l1_ffn_b1": np.full((1, 64), np.nan, np.float32)}, "has values that are NaN or infinite"),
        ({"Wemb": np.zeros((99, 32), np.float32)}, r"vocab\.spm has 100 tokens, but the embeddings 99 rows"),
    ],
)
def test_from_marian_unsupported_weights_and_settings(tmp_path, changes, message):
    folder = copied(tmp_path)
    rewrite(folder, **changes)
    with pytest.raises(ValueError, match=message):
        from_marian(str(folder), str(tmp_path / "model"))
    assert not (tmp_path / "model").exists()


def write_yaml(path, **settings) -> None:
    path.write_text(yaml.safe_dump({name.replace("_", "-"): value for name, value in settings.items()}))


def test_from_marian_decoder_settings_and_guided_alignment(tmp_path):
    folder = copied(tmp_path)
    vocabularies = ["/data/run 7/vocab.spm"] * 2
    sets = ["/data/corpus.clean.en.gz", "/data/corpus.clean.de.gz"]
    write_yaml(folder / "model.npz.yml", vocabs=vocabularies, train_sets=sets, guided_alignment="/data/corpus.align")
    write_yaml(folder / "model.npz.decoder.yml", vocabs=vocabularies, beam_size=6, normalize=0.6, word_penalty=0)
    rewrite(folder, **{"transformer-guided-alignment-layer": "1"})
    # As Marian names the weights that were the best by a metric; their decoder's file is their own.
    (folder / "model.npz").rename(folder / "model.npz.best-bleu.npz")
    (folder / "model.npz.decoder.yml").rename(folder / "model.npz.best-bleu.npz.decoder.yml")
    model, tokenizer = load(from_marian(str(folder), str(tmp_path / "model")))
    assert (model.generation_config.num_beams, model.generation_config.length_penalty) == (6, 0.6)
    assert model.generation_config.length_penalty_type == "hf"
    # The first head of a layer, which Marian counts from 1.
    assert model.config.heads_for_alignment == [(0, 0)]
    assert (tokenizer.source_lang, tokenizer.target_lang) == ("en", "de")
    assert read_card(str(tmp_path / "model"))[1:3] == ("en", "de")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"word_penalty": 0.2}, "word-penalty is 0.2, but must be 0"),
        ({"beam_size": "six", "normalize": "x"}, "beam-size is 'six', .* from 1; normalize is 'x', but must be a num"),
        ({"guided_alignment": "a", "transformer_guided_alignment_layer": 3}, "layer is 3, but must be .* from 1 to 2"),
    ],
)
def test_from_marian_unsupported_decoder_settings(tmp_path, settings, message):
    folder = copied(tmp_path)
    if layer := settings.pop("transformer_guided_alignment_layer", None):
        rewrite(folder, **{"transformer-guided-alignment-layer": layer})
    write_yaml(folder / "model.npz.decoder.yml", **settings)
    with pytest.raises(ValueError, match=message):
        from_marian(str(folder), str(tmp_path / "model"))


def test_from_marian_languages_of_vocabularies(tmp_path):
    folder = copied(tmp_path, "separate_relu")
    for side, language in (("source", "fr"), ("target", "es")):
        (folder / f"{side}.spm").rename(folder / f"vocab.{language}.spm")
    (folder / "model.npz.yml").unlink()
    write_yaml(folder / "decoder.yml", vocabs=["vocab.fr.spm", "vocab.es.spm"])
    from_marian(str(folder), str(tmp_path / "model"))
    assert read_card(str(tmp_path / "model"))[1:3] == ("fr", "es")


def test_from_marian_archive_of_opus_mt(tmp_path):
    folder = copied(tmp_path, "separate_relu")
    vocabulary = "opus.spm32k-spm32k.vocab.yml"
    (folder / "model.npz").rename(folder / "opus.spm32k-spm32k.transformer-align.model1.npz.best-perplexity.npz")
    (folder / "model.npz.yml").unlink()
    write_yaml(folder / "decoder.yml", vocabs=[vocabulary] * 2, beam_size=6, normalize=1)
    for name in (vocabulary, "preprocess.sh", "postprocess.sh"):
        (folder / name).write_text("")
    message = r"vocab\.yml, opus\..*archive of OPUS-MT, whose .* --from hf_marian --input Helsinki-NLP/opus-mt-"
    with pytest.raises(ValueError, match=message):
        from_marian(str(folder), str(tmp_path / "model"))


class Malicious:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (Path.touch, (self.mark,))


def test_from_marian_runs_no_pickled_code(tmp_path):
    folder = copied(tmp_path)
    mark = tmp_path / "executed"
    np.savez(folder / "model.npz", Wemb=np.array([Malicious(mark)], dtype=object))
    with pytest.raises(ValueError, match=r"model\.npz cannot be read"):
        from_marian(str(folder), str(tmp_path / "model"))
    assert not mark.exists()


def test_from_marian_array_that_claims_a_terabyte(tmp_path):
    folder = copied(tmp_path)
    with zipfile.ZipFile(folder / "model.npz", "w") as archive:
        header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (274877906944,), }\n"
        header = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
        archive.writestr("Wemb.npy", header + bytes(16))
    with pytest.raises(ValueError, match=r"model\.npz cannot be read: (Unable to allocate 1\.00 TiB|EOF)"):
        from_marian(str(folder), str(tmp_path / "model"))


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x93NUMPY"])
def test_from_marian_file_without_arrays(tmp_path, content):
    folder = copied(tmp_path)
    (folder / "model.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.npz cannot be read: "):
        from_marian(str(folder), str(tmp_path / "model"))
    np.save(folder / "model.npy", np.zeros(3))
    (folder / "model.npy").rename(folder / "model.npz")
    with pytest.raises(ValueError, match=r"model\.npz cannot be read: "):
        from_marian(str(folder), str(tmp_path / "model"))
    with np.load(FIXTURES / "tied_relu" / "model.npz") as stored:
        settings = stored["special:model.yml"]
    np.savez(folder / "model.npz", **{"special:model.yml": settings})
    with zipfile.ZipFile(folder / "model.npz", "a") as archive:
        archive.writestr("Wemb", content)
    with pytest.raises(ValueError, match=r"model\.npz cannot be read: "):
        from_marian(str(folder), str(tmp_path / "model"))


def test_from_marian_arrays_compressed_too_much(tmp_path):
    folder = copied(tmp_path)
    np.savez_compressed(folder / "model.npz", Wemb=np.zeros(2**22, np.float32))
    with pytest.raises(ValueError, match=r"model\.npz claims 16,[\d,]* bytes, but the file has"):
        from_marian(str(folder), str(tmp_path / "model"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.npz.yml", b"", r"the settings in .*model\.npz\.yml are damaged: they have no fields"),
        ("model.npz.yml", b"a: [", r"the settings in .*model\.npz\.yml are damaged: while parsing"),
        ("model.npz.yml", b"vocabs: 3", r"vocabs in the settings of .*model\.npz is 3; it must be a list of two names"),
        ("vocab.spm", b"", r"vocab\.spm is damaged, or is no model of SentencePiece"),
    ],
)
def test_from_marian_damaged_settings_and_vocabularies(tmp_path, name, content, message):
    folder = copied(tmp_path)
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        from_marian(str(folder), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_from_marian_damaged_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no \.npz of weights; name the folder that Marian trained in"):
        from_marian(str(tmp_path), str(tmp_path / "model"))
    folder = copied(tmp_path)
    (folder / "model.npz.yml").write_text("vocabs: [../../../etc/vocab.spm, a/b/vocab.yml]\n")
    with pytest.raises(ValueError, match=r"are vocab\.spm, vocab\.yml; two SentencePiece models \(\.spm\) are needed"):
        from_marian(str(folder), str(tmp_path / "model"))
    (folder / "model.npz.yml").unlink()  # Then the only .spm is both.
    (folder / "model.npz.optimizer.npz").write_bytes(b"newer")
    assert from_marian(str(folder), str(tmp_path / "model")).is_dir()
    (folder / "model.npz").write_bytes((folder / "model.npz").read_bytes()[:-99])
    with pytest.raises(ValueError, match=r"model\.npz cannot be read"):
        from_marian(str(folder), str(tmp_path / "other"))
    (folder / "vocab.spm").unlink()
    with pytest.raises(ValueError, match="are none; two SentencePiece models"):
        from_marian(str(folder), str(tmp_path / "other"))


def swap_queries_and_keys(model):
    attention = model.model.decoder.layers[0].self_attn
    attention.q_proj, attention.k_proj = attention.k_proj, attention.q_proj


def swap_channels(model):
    channels = torch.arange(32)
    channels[[4, 6]] = channels[[6, 4]]
    model.load_state_dict(weight_transforms.permute_channels(model.state_dict(), channels))


MISTAKES = {
    "positions of the paper": lambda model: model.config.update({"position_embedding_type": "sinusoidal"}),
    "shifted positions": lambda model: model.config.update({"position_offset": 1}),
    "a bias": lambda model: model.model.encoder.layers[1].fc2.bias.zero_(),
    "the bias of the output": lambda model: model.lm_head.bias.zero_(),
    "queries and keys": swap_queries_and_keys,
    "two channels": swap_channels,
}


@pytest.mark.parametrize("mistake", MISTAKES)
@torch.no_grad()
@pytest.mark.bridge
def test_add_scores_with_wrong_model(converted, mistake):
    recorded = expected("tied_relu")
    model, tokenizer = load(converted["tied_relu"])
    MISTAKES[mistake](model)
    hypotheses = scored_hypotheses(recorded)
    parity = add_scores({"log_probs": {}, "tolerance": 1e-4}, model, tokenizer, hypotheses)
    assert not parity["equal"]


def test_convert_from_marian(tmp_path, capsys):
    output = tmp_path / "model"
    main(["convert", "--from", "marian", "--input", str(FIXTURES / "tied_relu"), "--output", str(output)])
    assert re.search(r"parity\.json says how it was compared with", capsys.readouterr().out)
    with pytest.raises(SystemExit, match="error: positions is hf, but marian has no such option"):
        main(["convert", "--from", "marian", "--input", "a", "--output", "b", "--positions", "hf"])
