"""What pictures draw equals an independent computation, and their words are those of the sentence, never cut off."""

import io
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import TwoVocabularyTokenizer, score, train_tokenizer, translate
from hf_vanilla_transformer.apps.pictures.forward_pass import forward_pass, masks_of
from tests.apps.pictures.attention_by_hand import attention_by_hand
from tests.constant_engine import ConstantEngine
from tests.models import decisive_model
from tests.parity import paper_numpy
from tests.support.missing_packages import without_matplotlib
from tests.support.svg import words_of_svg


matplotlib = pytest.importorskip("matplotlib")

from hf_vanilla_transformer.apps import pictures  # noqa: E402
from hf_vanilla_transformer.apps.pictures import token_probabilities  # noqa: E402
from hf_vanilla_transformer.support import figure_style  # noqa: E402


FIXTURE = Path(__file__).parents[2] / "fixtures" / "numbers_tiny"
SENTENCE, TARGET = "two small houses", "zwei kleine Häuser"
LONG = "nine hundred and eighty-seven million, six hundred and fifty-four thousand, three hundred and twenty-one"
LONG_TARGET = "neunhundertsiebenundachtzig Millionen sechshundertvierundfünfzigtausenddreihunderteinundzwanzig"


@pytest.fixture(scope="module")
def model(tokenizer):
    return decisive_model(vocab_size=len(tokenizer))


@pytest.fixture(scope="module")
def numbers():
    return AutoModelForSeq2SeqLM.from_pretrained(FIXTURE), AutoTokenizer.from_pretrained(FIXTURE)


@pytest.fixture(scope="module")
def expected(model, tokenizer):
    source, target = tokenizer(SENTENCE).input_ids, tokenizer(text_target=TARGET).input_ids
    return attention_by_hand(model, source, [model.config.decoder_start_token_id, *target[:-1]])


def words(ticks) -> list[str]:
    return [label.get_text() for label in ticks]


def images(figure) -> list[np.ndarray]:
    return [np.asarray(axes.images[0].get_array()) for axes in figure.axes if axes.images]


WORDS = {
    "encoder": (["two", "small", "houses", "</s>"], ["two", "small", "houses", "</s>"]),
    "decoder": (["zwei", "kleine", "Häuser", "</s>"], ["<s>", "zwei", "kleine", "Häuser"]),
    "cross": (["zwei", "kleine", "Häuser", "</s>"], ["two", "small", "houses", "</s>"]),
}


@pytest.mark.parametrize("attention_type", WORDS)
def test_plot_attention_matrix(model, tokenizer, expected, attention_type):
    figure = pictures.plot_attention(model, tokenizer, SENTENCE, TARGET, kind=attention_type, layer=1, head=2)
    (drawn,) = images(figure)
    np.testing.assert_allclose(drawn, expected[attention_type][1, 2], atol=1e-6)
    axes = figure.axes[0]
    assert (words(axes.get_yticklabels()), words(axes.get_xticklabels())) == WORDS[attention_type]
    numbers = [text.get_text() for text in axes.texts]
    assert numbers == [f"{weight:.2f}" for weight in expected[attention_type][1, 2].ravel()]
    assert "(query)" in axes.get_ylabel()
    assert "(key)" in axes.get_xlabel()


@pytest.mark.parametrize("attention_type", WORDS)
def test_plot_attention_heads(model, tokenizer, expected, attention_type):
    figure = pictures.plot_attention(model, tokenizer, SENTENCE, TARGET, kind=attention_type)
    np.testing.assert_allclose(images(figure), expected[attention_type][-1], atol=1e-6)
    assert [axes.get_title() for axes in figure.axes[:4]] == [f"head {head}" for head in range(4)]


def test_plot_attention_layers(model, tokenizer, expected):
    figure = pictures.plot_attention(model, tokenizer, SENTENCE, TARGET, style="layers")
    np.testing.assert_allclose(images(figure), expected["cross"].reshape(12, 4, 4), atol=1e-6)
    assert figure.axes[7].get_title() == "layers[1], head 3"


def test_plot_attention_lines(model, tokenizer, expected):
    figure = pictures.plot_attention(model, tokenizer, SENTENCE, "zwei kleine", style="lines", head=1, layer=0)
    (lines,) = figure.axes[0].collections
    queries, keys = figure.axes[:2]
    assert words(queries.get_yticklabels()) == ["zwei", "kleine", "</s>"]
    assert words(keys.get_yticklabels()) == ["two", "small", "houses", "</s>"]
    places = [axes.get_yticks().tolist() for axes in (queries, keys)]
    drawn = np.zeros((3, 4))
    for ((_, start), (_, end)), weight in zip(lines.get_segments(), lines.get_array(), strict=True):
        drawn[places[0].index(start), places[1].index(end)] = weight
    # The last query has another input.
    np.testing.assert_allclose(drawn[:2], expected["cross"][0, 1, :2], atol=1e-6)
    assert (np.diff(lines.get_array()) >= 0).all()


@pytest.mark.parametrize("num_beams", [1, 4])
def test_forward_pass_of_the_best_hypothesis(model, tokenizer, num_beams):
    """With beams, attention is that of the winner, which changed its beam on the way."""
    ids = tokenizer(SENTENCE, return_tensors="pt")
    options = {"num_beams": num_beams, "max_new_tokens": 12, "length_penalty": 1.0}
    row = model.generate(**ids, **options)[0].tolist()
    pair = forward_pass(model, tokenizer, SENTENCE, **options)
    expected = attention_by_hand(model, ids.input_ids[0].tolist(), row[:-1])
    for attention_type in WORDS:
        np.testing.assert_allclose(getattr(pair, attention_type), expected[attention_type], atol=1e-6)
    assert len(pair.target_tokens) == len(row) - 1


def test_beams_differ_from_greedy_search(model, tokenizer):
    """So the test above compares two paths."""
    assert translate(model, tokenizer, [SENTENCE], num_beams=1) != translate(model, tokenizer, [SENTENCE], num_beams=4)


def test_forward_pass_that_starts_from_the_pad_token(tokenizer):
    """As Marian's models do."""
    model = decisive_model(vocab_size=len(tokenizer), decoder_start_token_id=0)
    ids = tokenizer(SENTENCE, return_tensors="pt")
    options = {"num_beams": 4, "max_new_tokens": 12}
    row = model.generate(**ids, **options)[0, 1:].tolist()
    pair = forward_pass(model, tokenizer, SENTENCE, **options)
    assert pair.read_tokens[0] == "<pad>"
    assert pair.read_tokens[1:] == pair.target_tokens[:-1]
    assert len(pair.target_tokens) == len(row)


def test_words_of_two_vocabularies():
    sides = [train_tokenizer([text] * 3, vocab_size=300, show_progress=False) for text in (SENTENCE, TARGET)]
    tokenizer = TwoVocabularyTokenizer.of(*sides)
    model = decisive_model(vocab_size=len(sides[1]), source_vocab_size=len(sides[0]))
    pair = forward_pass(model, tokenizer, SENTENCE, TARGET)
    assert (pair.target_tokens, pair.source_tokens) == WORDS["cross"]
    masks = masks_of(model, tokenizer, [SENTENCE], [TARGET])
    assert (masks.read_tokens, masks.source_tokens) == ([WORDS["decoder"][1]], [WORDS["cross"][1]])


def test_forward_pass_removes_padding(numbers):
    model, tokenizer = numbers
    options = {"num_beams": 4, "num_return_sequences": 4}
    rows = model.generate(**tokenizer("seven", return_tensors="pt"), **options)
    assert rows[0, -1] == tokenizer.pad_token_id
    assert forward_pass(model, tokenizer, "seven", **options).target_tokens == ["sieb", "en", "</s>"]


def test_mode_of_the_model_is_restored(model, tokenizer):
    model.train()
    forward_pass(model, tokenizer, SENTENCE, TARGET)
    masks_of(model, tokenizer, [SENTENCE], [TARGET])
    assert model.training
    model.eval()
    assert not model.model.encoder.layers[0].self_attn._forward_pre_hooks


def test_plot_token_probabilities_equals_score(numbers):
    pair = ("forty-two", "vierundzwanzig")
    figure = pictures.plot_token_probabilities(*numbers, *pair)
    (expected,) = score(*numbers, *([text] for text in pair))
    assert min(expected.log_probs) < -5 < sorted(expected.log_probs)[2] < -0.12
    axes = figure.axes[0]
    texts = [text.get_text() for text in axes.texts]
    assert texts[::2] == ["v", "i", "er", "und", "z", "w", "a", "n", "zig", "</s>"]
    assert texts[1::2] == [f"{log_prob:.2f}" for log_prob in expected.log_probs]
    assert figure.get_suptitle() == f"log P(Y | X) = {expected.total:.2f}"
    colors = figure_style.color_map(figure_style.THEMES["light"].sequential[::-1])
    for patch, log_prob in zip(axes.patches, expected.log_probs, strict=True):
        assert patch.get_facecolor() == colors(max(0, 1 + log_prob / 5))


def test_plot_masks(numbers):
    model, tokenizer = numbers
    figure = pictures.plot_masks(model, tokenizer, ["seven", "six"], ["sieben", "sechs"])
    sources, targets = ["seven", "</s>", "<pad>"], ["<s>", "sieb", "en", "<pad>"]
    drawn = images(figure)
    encoder, decoder, cross = drawn[:3]
    source = len(tokenizer("six").input_ids)
    assert encoder.tolist() == [[True, True, False]] * source
    longest = len(tokenizer(text_target="sechs").input_ids)
    assert decoder.tolist() == [[key <= query and key < 3 for key in range(longest)] for query in range(longest)]
    assert cross.tolist() == [[True, True, False]] * longest
    assert drawn[3].all()
    assert drawn[4].tolist() == [[key <= query for key in range(longest)] for query in range(longest)]
    assert words(figure.axes[0].get_xticklabels()) == sources
    assert words(figure.axes[1].get_yticklabels()) == targets[:longest]


def test_plot_positions_of_the_paper():
    figure = pictures.plot_positions(length=30, d_model=64)
    table = paper_numpy.positional_encoding(30, 64)
    drawn, products = images(figure)
    np.testing.assert_allclose(drawn, table, atol=1e-6)
    np.testing.assert_allclose(products, table @ table.T, atol=1e-4)
    assert [axes.get_ylabel() for axes in figure.axes[:2]] == ["position", "position"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"position_embedding_type": "sinusoidal_tensor2tensor"}, paper_numpy.tensor2tensor_encoding(9, 32)),
        ({"position_offset": 2}, paper_numpy.positional_encoding(11, 32)[2:]),
        ({"position_embedding_type": "learned"}, None),
    ],
)
def test_plot_positions_of_a_model(fields, expected):
    model = decisive_model(**fields)
    if expected is None:
        expected = model.model.encoder.embed_positions.weight[:9].detach().numpy()
    drawn, _ = images(pictures.plot_positions(model, length=9))
    np.testing.assert_allclose(drawn, expected, atol=1e-6)


def test_plot_schedule_is_equation_3():
    figure = pictures.plot_schedule([256, 512], [1000, 4000], updates=6000)
    (axes,) = figure.axes
    settings = [(width, warmup) for width in (256, 512) for warmup in (1000, 4000)]
    for line, (width, warmup) in zip(axes.lines, settings, strict=True):
        at, rates = line.get_data()
        assert {1, warmup, 6000} <= set(at)
        np.testing.assert_allclose(rates, [paper_numpy.learning_rate(update, width, warmup) for update in at])
        assert line.get_label() == f"d_model {width}, warm-up {warmup:,}"
    styles = {(line.get_color(), line.get_linestyle()) for line in axes.lines}
    assert len(styles) == 4


DRAWN = {
    "heads": partial(pictures.plot_attention, style="heads"),
    "lines": partial(pictures.plot_attention, style="lines"),
    "matrix": partial(pictures.plot_attention, style="matrix"),
    "layers": partial(pictures.plot_attention, style="layers"),
    "probabilities": pictures.plot_token_probabilities,
    "masks": lambda model, tokenizer, source, target, theme: pictures.plot_masks(
        model, tokenizer, [source, "one"], [target, "eins"], theme=theme
    ),
    "positions": lambda model, tokenizer, source, target, theme: pictures.plot_positions(theme=theme),
    "schedule": lambda model, tokenizer, source, target, theme: pictures.plot_schedule(theme=theme),
}


def drawn_texts(figure, monkeypatch) -> list:
    """The texts of a figure; matplotlib has labels of ticks outside of the axes, too, and does not draw them."""
    drawn = []
    draw = matplotlib.text.Text.draw
    with monkeypatch.context() as patch:
        patch.setattr(
            matplotlib.text.Text, "draw", lambda self, *args, **kw: (drawn.append(self), draw(self, *args, **kw))
        )
        figure.draw_without_rendering()
    return [text for text in drawn if text.get_visible() and text.get_text()]


@pytest.mark.parametrize(
    ("source", "target", "theme"), [("forty-two", "zweiundvierzig", "dark"), (LONG, LONG_TARGET, "light")]
)
@pytest.mark.parametrize("name", DRAWN)
def test_texts_do_not_overlap_and_are_inside(numbers, name, source, target, theme, monkeypatch):
    figure = DRAWN[name](*numbers, source, target, theme=theme)
    page = figure.bbox
    texts = drawn_texts(figure, monkeypatch)
    assert texts
    for text in texts:
        box = text.get_window_extent()
        assert page.x0 <= box.x0 <= box.x1 <= page.x1, text
        assert page.y0 <= box.y0 <= box.y1 <= page.y1, text
    for axes in figure.axes:
        for ticks, side in ((axes.get_xticklabels(), "x"), (axes.get_yticklabels(), "y")):
            boxes = [label.get_window_extent() for label in ticks if label in texts]
            ends = sorted((getattr(box, f"{side}0"), getattr(box, f"{side}1")) for box in boxes)
            # Boxes have air around their letters.
            assert all(end <= start + 3 for (_, end), (start, _) in pairwise(ends)), axes
    background = matplotlib.colors.to_rgba(figure_style.THEMES[theme].background)
    assert figure.get_facecolor() == background
    assert not any(matplotlib.colors.to_rgba(text.get_color()) == background for text in texts if text.axes is None)


def test_a_longer_sentence_makes_a_larger_figure(numbers):
    sizes = [
        DRAWN["matrix"](*numbers, source, target, theme="light").get_size_inches()
        for source, target in (("forty-two", "zweiundvierzig"), (LONG, LONG_TARGET))
    ]
    # 0.2 inches a token leave room for letters of ten points.
    assert sizes[1][0] > 0.2 * len(numbers[1](LONG).input_ids)
    assert sizes[1][1] > sizes[0][1]


def test_svg_has_words_and_pdf_and_png_are_files(numbers, tmp_path):
    figure = DRAWN["matrix"](*numbers, "forty-two", "fünf $a$", theme="dark")
    for name, head in (("a.png", b"\x89PNG"), ("a.pdf", b"%PDF"), ("a.SVG", b"<?xml")):
        assert pictures.save_figure(figure, tmp_path / name) == tmp_path / name
        assert (tmp_path / name).read_bytes().startswith(head)
    assert {"ty", "fünf", "$", "</s>", "source (key)"} <= words_of_svg(tmp_path / "a.SVG")


def test_dollar_signs_are_no_formula(numbers, tmp_path, monkeypatch):
    pair = forward_pass(*numbers, "seven", "sieben")
    pair = pair._replace(target_tokens=["$a$"] * len(pair.target_tokens))
    monkeypatch.setattr(token_probabilities, "forward_pass", lambda *args: pair)
    pictures.save_figure(pictures.plot_token_probabilities(*numbers, "seven"), tmp_path / "a.svg")
    assert "$a$" in words_of_svg(tmp_path / "a.svg")


# All matrices get their words as those of masks do.
@pytest.mark.parametrize("name", ["lines", "probabilities", "masks"])
def test_svg_of_control_characters_is_xml(numbers, name, tmp_path):
    figure = DRAWN[name](*numbers, "two\x1b\x0b", "zwei\x01\x0b\uffff", theme="light")
    assert "\ufffd" in words_of_svg(pictures.save_figure(figure, tmp_path / "a.svg"))


def test_a_figure_saves_itself(numbers):
    file = io.BytesIO()
    DRAWN["lines"](*numbers, "seven", "sieben", theme="dark").savefig(file, format="png")
    pixels = matplotlib.image.imread(io.BytesIO(file.getvalue()))
    np.testing.assert_allclose(
        pixels[0, 0, :3], matplotlib.colors.to_rgb(figure_style.THEMES["dark"].background), atol=0.01
    )


def test_settings_of_matplotlib_do_not_change(numbers, tmp_path):
    before = dict(matplotlib.rcParams)
    for name in ("lines", "masks", "probabilities", "positions", "schedule"):
        pictures.save_figure(DRAWN[name](*numbers, "seven", "sieben", theme="dark"), tmp_path / "a.svg")
    assert dict(matplotlib.rcParams) == before
    assert not pytest.importorskip("matplotlib.pyplot").get_fignums()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "self"}, 'kind is "self"; choose one of encoder, decoder, cross'),
        ({"style": "circles"}, 'style is "circles"; choose one of lines, matrix, heads, layers'),
        ({"theme": "blue"}, 'theme is "blue"; choose one of light, dark'),
        ({"layer": 3}, "layer is 3; it must lie between 0 and 2"),
        ({"kind": "encoder", "layer": 2}, "layer is 2; it must lie between 0 and 1"),
        ({"head": -1}, "head is -1; it must lie between 0 and 3"),
        ({"style": "heads", "head": 1}, 'head is 1, but the style "heads" draws all heads'),
        ({"style": "layers", "layer": 1}, 'layer is 1, but the style "layers" draws all layers'),
        ({"num_beams": 3}, "num_beams has no effect on a target that is given"),
    ],
)
def test_plot_attention_rejects_arguments(model, tokenizer, arguments, message):
    with pytest.raises(ValueError, match=message):
        pictures.plot_attention(model, tokenizer, SENTENCE, TARGET, **arguments)


def test_invalid_input_raises(model, tokenizer):
    with pytest.raises(ValueError, match="a sentence is empty"):
        forward_pass(model, tokenizer, " \u200b")
    with pytest.raises(TypeError, match="sources contains 3, a int; give strings"):
        forward_pass(model, tokenizer, 3)
    with pytest.raises(ValueError, match="there are 1 sources and 2 targets"):
        masks_of(model, tokenizer, ["a"], ["b", "c"])
    with pytest.raises(ValueError, match="a sentence is empty"):
        masks_of(model, tokenizer, [])
    with pytest.raises(ValueError, match="it must be even"):
        pictures.plot_positions(d_model=7)
    with pytest.raises(ValueError, match="leave out one of the two"):
        pictures.plot_positions(model, d_model=8)
    with pytest.raises(ValueError, match="values of d_model is 7"):
        pictures.plot_schedule(range(1, 8))
    with pytest.raises(ValueError, match=r"ends in \.foo, which is no format of figures"):
        pictures.save_figure(pictures.plot_schedule(), "a.foo")
    engine = ConstantEngine(tokenizer)
    with pytest.raises(ValueError, match="Engine returns no attention"):
        forward_pass(engine, tokenizer, "a")


def test_nan_weights_raise(tokenizer):
    model = decisive_model(vocab_size=len(tokenizer))
    with torch.no_grad():
        model.model.encoder.layers[0].fc1.bias[0] = torch.nan
    with pytest.raises(ValueError, match="has values that are NaN or infinite"):
        forward_pass(model, tokenizer, "two")


def test_without_matplotlib(model, tokenizer, monkeypatch):
    without_matplotlib(monkeypatch)
    for draw in (
        pictures.plot_positions,
        pictures.plot_schedule,
        lambda: pictures.plot_attention(model, tokenizer, "a"),
        lambda: pictures.plot_masks(model, tokenizer, ["a"]),
        lambda: pictures.plot_token_probabilities(model, tokenizer, "a"),
    ):
        with pytest.raises(ImportError, match=r"plots need matplotlib; install it with: .*\[plots\]"):
            draw()
