import copy
import math

import pytest
import torch
from tqdm import tqdm
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import TranslationPipeline, align, score, translate, translate_documents
from hf_vanilla_transformer.apps.pictures.forward_pass import forward_pass
from hf_vanilla_transformer.translation.inference import Inference
from tests.ecosystem.documentation import FIXTURE
from tests.generation.by_hand import forced_log_probabilities, gnmt_penalty
from tests.models import decisive_model, small_model


SENTENCES = ["two small houses", "a", "", "a small house a small house", "   ", "two"]


@pytest.fixture(scope="module")
def model(tokenizer):
    """It ends no sentence by itself, and a few tokens show what fifty do."""
    model = small_model(vocab_size=len(tokenizer))
    model.generation_config.max_length_offset = 5
    return model


def alone(model, tokenizer, sentence):
    inputs = tokenizer([sentence], return_tensors="pt")
    return tokenizer.decode(model.generate(**inputs)[0], skip_special_tokens=True)


@pytest.mark.parametrize("tokens_per_batch", [1, 8, 4096])
def test_translate_keeps_the_order(model, tokenizer, tokens_per_batch):
    expected = [alone(model, tokenizer, sentence) if sentence.strip() else sentence for sentence in SENTENCES]
    assert len(set(expected)) > 2
    assert translate(model, tokenizer, SENTENCES, tokens_per_batch=tokens_per_batch) == expected


def test_translate_fills_batches(model, tokenizer):
    lengths = [3, 12, 4, 4, 7, 1, 2, 5, 4]
    batches = list(Inference(model, tokenizer, 10).batches(lengths, "working", "sentences"))
    # Of 12, 7, 5 and 4, 4 and 4, and 3, 2 and 1 tokens.
    assert batches == [[1], [4], [7, 2], [3, 8], [0, 6, 5]]


def score_themselves(model, tokenizer, sentences, **kwargs):
    return score(model, tokenizer, sentences, sentences, **kwargs)


@pytest.mark.parametrize("work", [translate, score_themselves])
def test_translate_keeps_tokens_per_batch(model, tokenizer, work):
    shapes, tokens_per_batch = [], 2 * len(tokenizer("two small houses").input_ids)
    hook = model.get_encoder().register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    work(model, tokenizer, SENTENCES, tokens_per_batch=tokens_per_batch)
    hook.remove()
    assert max(rows for rows, _ in shapes) > 1
    assert all(rows == 1 or rows * length <= tokens_per_batch for rows, length in shapes)


def test_translate_no_sentences(model, tokenizer):
    assert translate(model, tokenizer, []) == []
    blank = ["", " ", "\u200b", "\ufeff\t", "\xad"]
    assert translate(model, tokenizer, blank) == blank
    assert translate_documents(model, tokenizer, blank[2:3] + blank[4:], format="xml") == blank[2:3] + blank[4:]
    pytest.importorskip("selectolax")
    assert translate_documents(model, tokenizer, ["<b>&#8203;</b>", "<p>\ufeff</p>"], format="html") == [
        "<b>\u200b</b>",
        "<p>\ufeff</p>",
    ]


def test_translate_passes_generate_arguments(model, tokenizer):
    options = {"max_new_tokens": 1, "num_beams": 1}
    output = model.generate(**tokenizer(["two small houses"], return_tensors="pt"), **options)
    expected = tokenizer.decode(output[0], skip_special_tokens=True)
    assert translate(model, tokenizer, ["two small houses"], **options) == [expected]
    assert translate(model, tokenizer, ["two small houses"]) != [expected]


@pytest.mark.parametrize("training", [True, False])
def test_translate_restores_the_mode(model, tokenizer, training):
    model.train(training)
    try:
        expected = translate(model, tokenizer, SENTENCES)
        assert model.training == training
        torch.manual_seed(3)
        assert translate(model, tokenizer, SENTENCES) == expected
    finally:
        model.eval()


def test_translate_restores_the_mode_of_each_module(tokenizer):
    model = decisive_model(vocab_size=len(tokenizer)).train()
    model.model.encoder.eval()
    modes = [module.training for module in model.modules()]
    translate(model, tokenizer, ["a"])
    score(model, tokenizer, ["a"], ["two"])
    assert [module.training for module in model.modules()] == modes


def test_translate_with_several_sequences_in_the_config(model, tokenizer):
    expected = translate(model, tokenizer, SENTENCES)
    model = copy.deepcopy(model)
    model.generation_config.update(num_return_sequences=2, return_dict_in_generate=True)
    assert translate(model, tokenizer, SENTENCES) == expected


def test_score_rejects_an_unknown_penalty(model, tokenizer):
    model = copy.deepcopy(model)
    model.generation_config.length_penalty_type = "none"
    with pytest.raises(ValueError, match='length_penalty_type is "none"; choose "gnmt"'):
        score(model, tokenizer, ["a"], ["two"])


def test_translate_any_iterable(model, tokenizer):
    assert translate(model, tokenizer, (text for text in SENTENCES)) == translate(model, tokenizer, SENTENCES)


@pytest.mark.parametrize(("work", "count"), [(translate, 4), (score_themselves, 6)])
def test_translate_show_progress(model, tokenizer, capsys, work, count):
    """In sentences, of which blank ones are not translated."""
    work(model, tokenizer, SENTENCES, tokens_per_batch=8)
    assert f"/{count}" not in capsys.readouterr().err
    work(model, tokenizer, SENTENCES, tokens_per_batch=8, show_progress=True)
    assert f"{count}/{count}" in capsys.readouterr().err


def test_translate_rejects_other_objects(model, tokenizer):
    with pytest.raises(TypeError, match="sentences contains None, a NoneType; give strings"):
        translate(model, tokenizer, ["a", None])


@pytest.mark.parametrize("as_settings", [False, True])
@pytest.mark.parametrize("options", [{"num_return_sequences": 2}, {"return_dict_in_generate": True}])
def test_translate_returns_the_best_sequence(model, tokenizer, options, as_settings):
    expected = translate(model, tokenizer, SENTENCES, num_beams=4)
    if as_settings:
        settings = copy.deepcopy(model.generation_config)
        settings.update(num_beams=4, **options)
        options = {"generation_config": settings}
    assert translate(model, tokenizer, SENTENCES, **options) == expected


def test_translate_rejects_one_string(model, tokenizer):
    with pytest.raises(TypeError, match="sentences is one string; give a list"):
        translate(model, tokenizer, "two")


@pytest.mark.parametrize("options", [{}, {"length_penalty_type": "hf", "length_penalty": 1.5}])
def test_score_equals_beam_scores(options):
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(FIXTURE), AutoTokenizer.from_pretrained(FIXTURE)
    model.generation_config.update(**options)
    sources = ["twelve", "two hundred and five", "nine thousand four hundred and sixty-one"]
    search_options = {"num_return_sequences": 4, "return_dict_in_generate": True, "output_scores": True}
    output = model.generate(**tokenizer(sources, return_tensors="pt", padding=True), **search_options)
    targets = tokenizer.batch_decode(output.sequences, skip_special_tokens=True)
    scores = score(model, tokenizer, [source for source in sources for _ in range(4)], targets)
    num_compared = 0
    for row, target, beams, forced in zip(
        output.sequences.tolist(), targets, output.sequences_scores.tolist(), scores, strict=True
    ):
        ids = tokenizer(text_target=target).input_ids
        if row[1 : 1 + len(ids)] == ids:  # The text of another hypothesis may have other tokens.
            assert forced.normalized == pytest.approx(beams, abs=1e-5)
            num_compared += 1
    assert num_compared > 6


@pytest.mark.parametrize("tokens_per_batch", [1, 8, 4096])
def test_score_log_probs_of_each_token(model, tokenizer, tokens_per_batch):
    targets = ["a small house", "", "two", "two small houses a", "house", "small"]
    for source, target, scored in zip(
        SENTENCES, targets, score(model, tokenizer, SENTENCES, targets, tokens_per_batch=tokens_per_batch), strict=True
    ):
        ids = torch.tensor([1, *tokenizer(text_target=target).input_ids])
        expected = forced_log_probabilities(model, tokenizer([source], return_tensors="pt").input_ids[0], ids)
        assert scored.log_probs == pytest.approx(expected.tolist(), abs=1e-5)
        assert scored.tokens == tokenizer.convert_ids_to_tokens(ids[1:].tolist())
        assert scored.tokens[-1] == "</s>"
        assert scored.total == pytest.approx(expected.sum().item(), abs=1e-5)
        assert scored.normalized == pytest.approx(scored.total / gnmt_penalty(len(expected)), abs=1e-5)


def test_score_no_pairs(model, tokenizer):
    assert score(model, tokenizer, [], []) == []


def test_score_rejects_unpaired_texts(model, tokenizer):
    with pytest.raises(ValueError, match="2 sources and 1 targets"):
        score(model, tokenizer, ["a", "two"], ["a"])
    with pytest.raises(TypeError, match="targets is one string; give a list"):
        score(model, tokenizer, ["a"], "a")


def test_translate_keeps_the_number_of_threads(model, tokenizer):
    """torch's fused attention slows down for the rest of a process that has called `torch.set_num_threads`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "set_num_threads", None)
        translate(model, tokenizer, ["one two three"] * 50, tokens_per_batch=16)


@pytest.mark.parametrize("tokens_per_batch", [-5, 0])
def test_translate_rejects_tokens_per_batch(model, tokenizer, tokens_per_batch):
    message = f"tokens_per_batch is {tokens_per_batch}; it must be at least 1"
    with pytest.raises(ValueError, match=message):
        translate(model, tokenizer, ["a"], tokens_per_batch)
    with pytest.raises(ValueError, match=message):
        score(model, tokenizer, ["a"], ["b"], tokens_per_batch)


@pytest.mark.parametrize("text", ["\ud800", "a\udcff"])
def test_translate_rejects_lone_surrogates(model, tokenizer, text):
    with pytest.raises(ValueError, match=r"sentences contains .*, which is not UTF-8 text; decode it"):
        translate(model, tokenizer, ["a", text])
    with pytest.raises(ValueError, match=r"targets contains .*, which is not UTF-8 text; decode it"):
        score(model, tokenizer, ["a"], [text])


@pytest.mark.parametrize(("num_beams", "batches"), [(1, [4]), (8, [4]), (16, [2, 2]), (200, [1, 1, 1, 1])])
def test_translate_makes_smaller_batches_for_many_beams(monkeypatch, tokenizer, num_beams, batches):
    model, seen = decisive_model(vocab_size=len(tokenizer)), []
    texts = ["one two", "one two", "one two", "one two"]
    length = len(tokenizer(texts[0]).input_ids)

    def record(input_ids, **kwargs):
        seen.append(len(input_ids))
        return input_ids

    monkeypatch.setattr(model, "generate", record)
    translate(model, tokenizer, texts, tokens_per_batch=4 * length, num_beams=num_beams)
    assert seen == batches


def translate_by_pipeline(model, tokenizer, **options):
    return TranslationPipeline(model, tokenizer, device="cpu")(["two", "a small house"], batch_size=2, **options)


WORK = {
    "beam search": lambda model, tokenizer: translate(model, tokenizer, ["two"]),
    "greedy search": lambda model, tokenizer: translate(model, tokenizer, ["a small house", "two"], num_beams=1),
    "scores": lambda model, tokenizer: score(model, tokenizer, ["two"], ["zwei"]),
    "a pipeline": translate_by_pipeline,
    "a greedy pipeline": lambda model, tokenizer: translate_by_pipeline(model, tokenizer, num_beams=1),
}


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("weight", ["model.encoder.layers.1.fc1.bias", "model.decoder.layers.0.fc2.weight"])
@pytest.mark.parametrize("work", WORK)
def test_translate_rejects_nan_or_infinite_weights(tokenizer, work, weight, value):
    model = small_model(vocab_size=len(tokenizer))
    with torch.no_grad():
        model.get_parameter(weight)[3] = value
    with pytest.raises(ValueError, match=f"{weight} has values that are NaN or infinite"):
        WORK[work](model, tokenizer)


def test_translate_rejects_a_special_token_outside_the_vocabulary():
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(FIXTURE), AutoTokenizer.from_pretrained(FIXTURE)
    tokenizer.bos_token = ""
    assert translate(model, tokenizer, ["seven"]) == ["sieben"]


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vocab_size": 100}, r"the tokenizer has \d+ tokens, but the model's vocabulary has 100"),
        ({"source_vocab_size": 100}, r"the tokenizer has \d+ tokens, but the model's source vocabulary has 100"),
        ({"eos_token_id": 7}, "eos_token_id is 2 in the tokenizer and 7 in the model"),
    ],
)
def test_translate_rejects_the_tokenizer_of_another_model(tokenizer, work, fields, message):
    with pytest.raises(ValueError, match=f"^{message}; use a model with the tokenizer"):
        WORK[work](small_model(**{"vocab_size": len(tokenizer), **fields}), tokenizer)


def test_translate_accepts_an_empty_translation(tokenizer):
    model = small_model(vocab_size=len(tokenizer), tie_word_embeddings=False)
    # Every position has the same state, whose most likely token is </s>.
    norm = model.model.decoder.layers[-1].final_layer_norm
    with torch.no_grad():
        norm.weight.zero_()
        model.lm_head.weight[model.config.eos_token_id] = norm.bias * 100
    assert translate(model, tokenizer, ["two", ""]) == ["", ""]
    assert [row["translation_text"] for row in translate_by_pipeline(model, tokenizer)] == ["", ""]


def test_translate_does_not_warn_of_model_max_length(model, tokenizer, monkeypatch):
    """The tokenizer knows the longest sentence of the training, and transformers would warn of longer ones."""
    told = []
    monkeypatch.setattr("transformers.tokenization_utils_base.logger.warning", lambda *args: told.append(args))
    short = copy.deepcopy(tokenizer)
    short.model_max_length = 2
    text = "two hundred and twelve"
    TranslationPipeline(model=model, tokenizer=short)(text)
    translate(model, short, [text])
    score(model, short, [text], [text])
    align(model, short, [text], [text])
    forward_pass(model, short, text, text)
    assert not told
    short(text)
    assert told


@pytest.mark.parametrize("num_beams", [1, 4])
def test_translate_long_sentence_warning_and_progress(monkeypatch, caplog, capsys, tokenizer, num_beams):
    model, texts = decisive_model(vocab_size=len(tokenizer)), ["two", "two two two two"]
    options = {"num_beams": num_beams, "max_new_tokens": 5, "min_new_tokens": 5}
    expected = translate(model, tokenizer, texts, **options)
    assert not caplog.records
    length = len(tokenizer(texts[1]).input_ids)
    monkeypatch.setattr("hf_vanilla_transformer.translation.translate._LONG_SOURCE", length)
    assert translate(model, tokenizer, texts, tokens_per_batch=1, show_progress=True, **options) == expected
    assert [record.getMessage() for record in caplog.records] == [
        f"a sentence has {length} tokens; its time grows with the square of that, so split it."
    ]
    assert f"a long sentence:   0%|          | 0/{length}" in capsys.readouterr().err


def test_translate_long_sentence_counts_steps(monkeypatch, tokenizer):
    model, seen = decisive_model(vocab_size=len(tokenizer)), []

    class Bar(tqdm):
        def close(self):
            seen.append((self.desc, self.n))
            super().close()

    monkeypatch.setattr("hf_vanilla_transformer.translation.translate.tqdm", Bar)
    monkeypatch.setattr("hf_vanilla_transformer.translation.translate._LONG_SOURCE", 1)
    translate(model, tokenizer, ["two"], show_progress=True, max_new_tokens=6, min_new_tokens=6)
    assert ("a long sentence", 6) in seen


def test_translate_long_sentence_keeps_logits_processors(monkeypatch, tokenizer):
    monkeypatch.setattr("hf_vanilla_transformer.translation.translate._LONG_SOURCE", 1)
    calls = []

    def record(input_ids, scores):
        calls.append(input_ids.shape[1])
        return scores

    translate(
        decisive_model(vocab_size=len(tokenizer)),
        tokenizer,
        ["two"],
        max_new_tokens=2,
        min_new_tokens=2,
        logits_processor=[record],
    )
    assert calls == [1, 2]


@pytest.mark.parametrize("sentences", [None, 5])
def test_translate_names_an_argument_that_is_no_list(model, tokenizer, sentences):
    with pytest.raises(TypeError, match=f"sentences is {sentences}; give a list of sentences"):
        translate(model, tokenizer, sentences)
