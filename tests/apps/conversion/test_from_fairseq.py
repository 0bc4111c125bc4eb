"""Checkpoints in fairseq's layouts come in equal to FSMT with the same weights; none of their code runs."""

import json
import os
import pickle
import unicodedata
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import BPE
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, FSMTTokenizer

from hf_vanilla_transformer import translate
from hf_vanilla_transformer.apps.cli.main import main
from hf_vanilla_transformer.apps.conversion.fairseq import from_fairseq, read_dictionary
from hf_vanilla_transformer.apps.serving.model_card_facts import read_card
from tests.apps.conversion.fsmt import MERGES, OTHER, SENTENCES, SOURCE, SPECIAL, fsmt_model, write_tokenizer
from tests.apps.conversion.texts import texts
from tests.apps.conversion.tuning import check_fine_tuning


FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.fixture(autouse=True)
def moses():
    pytest.importorskip("sacremoses")


def modern(state):
    """Weights as since fairseq 0.9."""
    return {**state, "encoder.version": torch.tensor([3.0]), "encoder.embed_positions._float_tensor": torch.zeros(1)}


def old(state):
    """Weights as before fairseq 0.7: one matrix for queries, keys and values, numbered norms, no output projection."""
    norms = {"encoder": ["self_attn", "final"], "decoder": ["self_attn", "encoder_attn", "final"]}
    renamed = {"decoder.embed_out": state["decoder.output_projection.weight"]}
    for name, weight in state.items():
        if "output_projection" in name:
            continue
        side = name.split(".")[0]
        for index, norm in enumerate(norms[side]):
            name = name.replace(f".{norm}_layer_norm.", f".layer_norms.{index}.")
        if "q_proj" in name:
            parts = [state[name.replace("q_proj", f"{letter}_proj")] for letter in "qkv"]
            renamed[name.replace("q_proj.", "in_proj_")] = torch.cat(parts)
        elif "k_proj" not in name and "v_proj" not in name:
            renamed[name] = weight
    return renamed


def write_dictionary(path, vocabulary):
    """A dictionary of fairseq: `@@` marks what goes on."""
    words = [token for token in vocabulary if token not in SPECIAL]
    marked = [word.removesuffix("</w>") if word.endswith("</w>") else f"{word}@@" for word in words]
    path.write_text("".join(f"{word} {9000 - index}\n" for index, word in enumerate(marked)), encoding="utf-8")


def write_fairseq(folder, fsmt, target=SOURCE, names=modern, has_cfg=False, dtype=torch.float32, **changes):
    """A folder as fairseq leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    config = fsmt.config
    args = {
        "arch": "transformer_wmt_en_de",
        "task": "translation",
        "source_lang": "en",
        "target_lang": "de",
        "dropout": 0.1,
        "encoder_normalize_before": False,
        "share_all_embeddings": True,
        "adaptive_softmax_cutoff": None,
    }
    for side in ("encoder", "decoder"):
        args[f"{side}_embed_dim"] = config.d_model
        args[f"{side}_layers"] = getattr(config, f"{side}_layers")
        args[f"{side}_attention_heads"] = getattr(config, f"{side}_attention_heads")
        args[f"{side}_ffn_embed_dim"] = getattr(config, f"{side}_ffn_dim")
    args = Namespace(**{**args, **changes})
    state = {
        name.removeprefix("model."): weight.to(dtype)
        for name, weight in fsmt.state_dict().items()
        if "embed_pos" not in name
    }
    settings = {"args": None, "cfg": {"model": args, "task": {"_name": "translation"}}} if has_cfg else {"args": args}
    extra = {"optimizer_history": [{"num_updates": 7}], "extra_state": {"val_loss": 1.5}, "last_optimizer_state": None}
    torch.save({**settings, "model": names(state), **extra}, folder / "model.pt")
    write_dictionary(folder / "dict.en.txt", SOURCE)
    write_dictionary(folder / "dict.de.txt", target)
    (folder / "bpecodes").write_text("#version: 0.2\n" + "".join(f"{merge}\n" for merge in MERGES), encoding="utf-8")


@pytest.mark.parametrize(
    ("target", "shares", "options"),
    [
        (SOURCE, "all", {}),
        (OTHER, "decoder", {"has_cfg": True}),
        (OTHER, "decoder", {"names": old}),
        (SOURCE, "all", {"names": lambda state: {k: v for k, v in state.items() if "output_proj" not in k}}),
    ],
    ids=["modern", "cfg and two vocabularies", "old", "shared output"],
)
def test_from_fairseq_equals_fsmt(tmp_path, target, shares, options):
    fsmt = fsmt_model(target, shares=shares)
    write_fairseq(tmp_path / "wmt16", fsmt, target, **options)
    folder = from_fairseq(str(tmp_path / "wmt16"), str(tmp_path / "model"))
    certificate = json.loads((folder / "parity.json").read_text())
    assert certificate["equal"]
    assert certificate["translations"] == {"sentences": 8, "greedy": 8, "beam": 8}
    assert set(certificate["sha256"]) == {"model.pt", "dict.en.txt", "dict.de.txt", "bpecodes"}
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    # The oracle with its own files.
    write_tokenizer(tmp_path / "tokenizer", target)
    oracle = FSMTTokenizer.from_pretrained(tmp_path / "tokenizer")
    assert tokenizer(SENTENCES).input_ids == oracle(SENTENCES).input_ids
    rows = [fsmt.generate(**oracle(text, return_tensors="pt"), num_beams=5, max_length=200)[0] for text in SENTENCES]
    assert translate(model, tokenizer, SENTENCES) == [oracle.decode(row, skip_special_tokens=True) for row in rows]


def fairseq_ids(lines, vocabulary, language):
    """As the commands of fairseq's examples make them: Moses, byte-pair encoding, and the dictionary."""
    import sacremoses

    normalizer = sacremoses.MosesPunctNormalizer(language, pre_replace_unicode_punct=True)
    moses = sacremoses.MosesTokenizer(language)
    merges = [tuple(merge.split()) for merge in MERGES]
    bpe = Tokenizer(BPE(vocabulary, merges, unk_token="<unk>", end_of_word_suffix="</w>"))
    bpe.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words = [moses.tokenize(normalizer.normalize(line), aggressive_dash_splits=True, return_str=True) for line in lines]
    return [[*row.ids, 2] for row in bpe.encode_batch(words)]


@pytest.mark.bridge
def test_from_fairseq_tokenizer_equals_moses_and_bpe(tmp_path):
    write_fairseq(tmp_path / "source", fsmt_model(OTHER, shares="decoder"), OTHER)
    tokenizer = AutoTokenizer.from_pretrained(from_fairseq(str(tmp_path / "source"), str(tmp_path / "model")))
    for argument, language, vocabulary in (("text", "en", SOURCE), ("text_target", "de", OTHER)):
        # Control characters and unassigned ones are dropped.
        lines = ["".join(c for c in text if unicodedata.category(c)[0] != "C") for text in texts(language)]
        assert tokenizer(**{argument: lines}).input_ids == fairseq_ids(lines, vocabulary, language)
    numbers = texts("de")[: len(lines) // 4]
    targets = ["Das kleine Haus ist nicht alt.", 'Er sagte "Ja & nein", und lief.', *numbers]
    assert tokenizer.batch_decode(fairseq_ids(targets, OTHER, "de"), skip_special_tokens=True) == targets


def test_from_fairseq_half_precision(tmp_path):
    fsmt = fsmt_model()
    write_fairseq(tmp_path / "source", fsmt, dtype=torch.float16)
    model = AutoModelForSeq2SeqLM.from_pretrained(from_fairseq(str(tmp_path / "source"), str(tmp_path / "model")))
    expected = fsmt.model.encoder.layers[0].fc1.bias.half().float()
    assert torch.equal(model.model.encoder.layers[0].fc1.bias, expected)


def test_read_dictionary_lines(tmp_path):
    path = tmp_path / "dict.en.txt"
    path.write_text("the 12\nhou@@ 5\n</s> 3 #fairseq:overwrite\nmadeupword0000 0\n", encoding="utf-8")
    tokens = {
        "<s>": 0,
        "<pad>": 1,
        "</s>": 2,
        "<unk>": 3,
        "the</w>": 4,
        "hou": 5,
        "</s></w>": 6,
        "madeupword0000</w>": 7,
    }
    assert read_dictionary(path) == tokens
    path.write_text("the 12\nhou@@ 5\n</s> 3 #fairseq:overwrite\nmadeupword0000 0", encoding="utf-8")
    assert read_dictionary(path) == tokens
    for content, message in (
        ("the\n", r'line 1 of .*dict\.en\.txt is "the"; it must be a token, a space and its'),
        ("", r'line 1 of .*dict\.en\.txt is ""; it must be'),
        ("the 2\na 1\nthe 1 #fairseq:overwrite\n", r'line 3 of .* is "the 1 #fairseq:overwrite", which is token 4 alr'),
        (
            "the 2\nthe 1\n",
            r'line 2 of .* is "the 1", which is token 4 already; a dictionary with the same token twice',
        ),
        ("<unk>@@ 1\n", r'line 1 of .* is "<unk>@@ 1", which is token 3 already'),
    ):
        path.write_text(content)
        with pytest.raises(ValueError, match=message):
            read_dictionary(path)


def test_from_fairseq_files_without_last_line_break(tmp_path):
    """The last token has a row of the embeddings, too, as fairseq reads it."""
    write_fairseq(tmp_path / "source", fsmt_model())
    for name in ("dict.en.txt", "dict.de.txt", "bpecodes"):
        path = tmp_path / "source" / name
        path.write_text(path.read_text(encoding="utf-8").removesuffix("\n"), encoding="utf-8")
    folder = from_fairseq(str(tmp_path / "source"), str(tmp_path / "model"))
    assert json.loads((folder / "vocab-src.json").read_text(encoding="utf-8")) == SOURCE
    assert (folder / "merges.txt").read_text(encoding="utf-8").splitlines() == MERGES
    assert read_card(str(folder))[1:3] == ("en", "de")


@pytest.mark.parametrize("codes", ["#version: 0.1\nt h\n", "t h\nth e\nthe </w>\n"])
def test_read_merges_version_0_1(tmp_path, codes):
    """Their end of a word is a symbol of its own, which byte-pair encoding of version 0.2 does not have."""
    write_fairseq(tmp_path / "source", fsmt_model())
    (tmp_path / "source" / "bpecodes").write_text(codes)
    with pytest.raises(ValueError, match=r"bpecodes holds BPE codes of version 0\.1, which split words in another way"):
        from_fairseq(str(tmp_path / "source"), str(tmp_path / "model"))


class Attack:
    def __reduce__(self):
        return os.system, ("touch executed",)


def test_from_fairseq_runs_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_fairseq(tmp_path / "source", fsmt_model())
    checkpoint = torch.load(tmp_path / "source" / "model.pt", weights_only=False)
    torch.save({**checkpoint, "extra_state": Attack()}, tmp_path / "source" / "model.pt")
    with pytest.raises(ValueError, match=r"model\.pt holds \w+\.system, which could run code; save it without\.$"):
        from_fairseq(str(tmp_path / "source"), str(tmp_path / "model"))
    assert not (tmp_path / "executed").exists()
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("content", [b"", b"garbage", bytes(500), b"<html>404</html>", pickle.dumps({"model": 1})])
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_from_fairseq_file_that_is_no_checkpoint(tmp_path, content):
    write_fairseq(tmp_path / "source", fsmt_model())
    (tmp_path / "source" / "model.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.pt is no checkpoint of PyTorch; give a complete \.pt that"):
        from_fairseq(str(tmp_path / "source"), str(tmp_path / "model"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder_normalize_before": True}, "encoder_normalize_before is True, .* False. CTranslate2's ct2-fairseq-c"),
        ({"adaptive_softmax_cutoff": "100,200"}, "adaptive_softmax_cutoff is '100,200', but must be None"),
        ({"decoder_attention_heads": 2}, "decoder_attention_heads is 2, but must be 4"),
        ({"decoder_output_dim": 16}, "decoder_output_dim is 16, but must be 32"),
        (
            {"decoder_learned_pos": True, "activation_fn": "tanh"},
            "decoder_learned_pos is True, but must be False; activation_fn is 'tanh', but must be one of relu",
        ),
        ({"encoder_layers": 2}, r"encoder\.layers\.2\.fc1\.bias of .* is \(48,\); its arguments .* need none"),
        ({"decoder_layers": 3}, r"decoder\.layers\.2\.encoder_attn\.k_proj\.bias of .* is missing; its arg.* \(32,\)"),
        ({"source_lang": "xx"}, r"No such file or directory: .*dict\.xx\.txt"),
    ],
)
def test_from_fairseq_unsupported_arguments(tmp_path, changes, message):
    write_fairseq(tmp_path / "source", fsmt_model(), **changes)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        from_fairseq(str(tmp_path / "source"), str(tmp_path / "model"))
    assert not (tmp_path / "model").exists()


def damage(folder, name):
    path = folder / name
    path.write_bytes(path.read_bytes()[:-400])


FAULTS = {
    "a truncated checkpoint": (lambda folder: damage(folder, "model.pt"), r"model\.pt cannot be read: "),
    "no checkpoint": (lambda folder: (folder / "model.pt").unlink(), r"holds no \.pt of weights"),
    "no codes": (lambda folder: (folder / "bpecodes").unlink(), "holds none of bpecodes, code, codes; copy the BPE"),
    "a shorter dictionary": (
        lambda folder: (folder / "dict.en.txt").write_text("a 1\n"),
        r"encoder\.embed_tokens\.weight of .* is \(\d+, 32\); its arguments and dictionaries need \(5, 32\)",
    ),
    "another object": (lambda folder: torch.save([1], folder / "model.pt"), r"is no checkpoint of fairseq"),
    "an ensemble": (
        lambda folder: [(folder / f"model{i}.pt").write_bytes(b"") for i in (1, 2)] and (folder / "model.pt").unlink(),
        r"holds model1\.pt, model2\.pt; name one of these files",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_from_fairseq_damaged_source(tmp_path, fault):
    change, message = FAULTS[fault]
    write_fairseq(tmp_path / "source", fsmt_model())
    change(tmp_path / "source")
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        from_fairseq(str(tmp_path / "source"), str(tmp_path / "model"))
    assert not (tmp_path / "model").exists()


def test_from_fairseq_weights_that_are_nan(tmp_path):
    fsmt = fsmt_model()
    with torch.no_grad():
        fsmt.model.decoder.layers[0].fc1.bias[2] = float("nan")
    write_fairseq(tmp_path / "source", fsmt)
    with pytest.raises(ValueError, match=r"decoder\.layers\.0\.fc1\.bias in source has values that are NaN"):
        from_fairseq(str(tmp_path / "source"), str(tmp_path / "model"))


def test_convert_from_fairseq(tmp_path, capsys):
    write_fairseq(tmp_path / "source", fsmt_model())
    arguments = ["convert", "--from", "fairseq", "--input", str(tmp_path / "source" / "model.pt")]
    main([*arguments, "--output", str(tmp_path / "model")])
    assert f"the model is in {tmp_path / 'model'}" in capsys.readouterr().out
    for name, value, said in (("revision", "main", "main"), ("token", "hf_secret", "given")):
        with pytest.raises(SystemExit, match=f"{name} is {said}, but fairseq has no such option"):
            main([*arguments, "--output", "x", f"--{name}", value])


def test_from_fairseq_then_fine_tune(tmp_path):
    folder = from_fairseq(str(FIXTURES / "fairseq" / "two_vocabularies"), str(tmp_path / "model"))
    check_fine_tuning(folder, SENTENCES, ["das haus", "ein hund", "zwei"], tmp_path)


@pytest.mark.parametrize("name", ["joint", "two_vocabularies"])
@torch.no_grad()
def test_from_fairseq_equals_recorded_fairseq(tmp_path, name):
    """Models of fairseq 0.12.2, with what it computed (tests/fixtures/fairseq/make.py)."""
    folder = FIXTURES / "fairseq" / name
    model = AutoModelForSeq2SeqLM.from_pretrained(from_fairseq(str(folder), str(tmp_path / "model")))
    record = json.loads((folder / "fairseq.json").read_text())
    for source, target, log_probs, translation, score in zip(*record.values(), strict=True):
        ids = torch.tensor([source])
        our_log_probs = log_probabilities(model, ids, target)
        torch.testing.assert_close(our_log_probs, torch.tensor(log_probs), atol=1e-4, rtol=0)
        # fairseq stops when as many hypotheses have finished as there are beams.
        output = model.generate(ids, num_beams=5, max_length=22, early_stopping=True)
        assert output[0, 1:].tolist() == translation
        assert float(log_probabilities(model, ids, translation).mean()) == pytest.approx(score, abs=1e-4)


def log_probabilities(model, ids, target):
    logits = model(ids, decoder_input_ids=torch.tensor([[2, *target[:-1]]])).logits[0]
    return logits.log_softmax(dim=-1).gather(-1, torch.tensor(target)[:, None])[:, 0]
