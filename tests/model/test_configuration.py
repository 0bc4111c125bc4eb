import pytest
import torch
from transformers import MarianConfig

from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.model.configuration_vanilla_transformer import PAPER_ROWS


# Table 3, last column, in millions, where the paper prints one; "big" is left out: no vocabulary gives all eleven.
PRINTED_MILLIONS = {
    "base": 65,
    "B d_k=16": 58,
    "B d_k=32": 60,
    "C N=2": 36,
    "C N=4": 50,
    "C N=8": 80,
    "C d_model=256": 28,
    "C d_model=1024": 168,
    "C d_ff=1024": 53,
    "C d_ff=4096": 90,
}
AUTHORS_VOCAB_SIZE = 40960


def count_parameters(config):
    with torch.device("meta"):
        return VanillaTransformerForConditionalGeneration(config).num_parameters()


@pytest.mark.parametrize(("row", "millions"), PRINTED_MILLIONS.items())
def test_parameter_counts_of_table_3(row, millions):
    config = VanillaTransformerConfig.from_paper(row, vocab_size=AUTHORS_VOCAB_SIZE)
    assert round(count_parameters(config) / 1e6) == millions


def test_parameter_count_of_the_big_model_is_not_the_printed_one():
    config = VanillaTransformerConfig.from_paper("big", vocab_size=AUTHORS_VOCAB_SIZE)
    assert count_parameters(config) == 218_300_416


def test_heads_of_row_a_keep_the_count():
    counts = {count_parameters(VanillaTransformerConfig.from_paper(f"A h={h}")) for h in (1, 4, 16, 32)}
    assert counts == {count_parameters(VanillaTransformerConfig())}


def test_defaults_are_the_base_model():
    config = VanillaTransformerConfig()
    assert (config.encoder_layers, config.decoder_layers, config.d_model, config.d_ff) == (6, 6, 512, 2048)
    assert (config.num_heads, config.key_dim, config.value_dim) == (8, 64, 64)
    assert (config.dropout, config.attention_dropout, config.activation_dropout) == (0.1, 0.0, 0.0)
    assert config.label_smoothing == 0.1


def test_big_model():
    config = VanillaTransformerConfig.from_paper("big")
    assert (config.d_model, config.d_ff, config.num_heads, config.dropout) == (1024, 4096, 16, 0.3)


@pytest.mark.parametrize("row", PAPER_ROWS)
def test_every_row_survives_saving(row, tmp_path):
    config = VanillaTransformerConfig.from_paper(row)
    config.save_pretrained(tmp_path)
    assert VanillaTransformerConfig.from_pretrained(tmp_path).to_dict() == config.to_dict()


def test_overrides_of_a_row():
    config = VanillaTransformerConfig.from_paper("C N=2", vocab_size=99, dropout=0)
    assert (config.encoder_layers, config.vocab_size, config.dropout) == (2, 99, 0)


def test_overrides_of_a_row_by_alias():
    assert VanillaTransformerConfig.from_paper("big", hidden_size=64).d_model == 64
    with pytest.raises(ValueError, match="d_model=32 and hidden_size=64 disagree"):
        VanillaTransformerConfig.from_paper("big", d_model=32, hidden_size=64)


def test_aliases():
    config = VanillaTransformerConfig(hidden_size=64, encoder_ffn_dim=128, decoder_ffn_dim=128, num_attention_heads=2)
    assert (config.d_model, config.d_ff, config.num_heads) == (64, 128, 2)
    assert (config.hidden_size, config.intermediate_size, config.decoder_attention_heads) == (64, 128, 2)


def test_it_says_that_it_is_no_decoder_alone():
    """Libraries that find no `is_decoder`, such as SHAP, cut as many tokens off the output as the input has."""
    config = VanillaTransformerConfig()
    assert config.is_decoder is MarianConfig().is_decoder is False
    assert VanillaTransformerConfig.from_dict(config.to_dict()).is_decoder is False


def test_cache_is_sized_by_the_decoder():
    config = VanillaTransformerConfig(encoder_layers=3, decoder_layers=5)
    assert config.get_text_config(decoder=True).num_hidden_layers == 5


@pytest.mark.parametrize("rate", [0, 0.0, 0.5, 1, 1.0])
def test_rates_are_numbers_from_0_to_1(rate):
    assert VanillaTransformerConfig(dropout=rate, label_smoothing=rate).dropout == rate


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_model": 510}, r"d_model \(510\) is not divisible by num_heads \(8\); choose a number of heads"),
        ({"d_model": 7, "num_heads": 7}, r"d_model is 7; sinusoids come in pairs .* choose an even d_model"),
        ({"encoder_ffn_dim": 1024, "decoder_ffn_dim": 2048}, "encoder_ffn_dim=1024 and decoder_ffn_dim=2048 disagree"),
        ({"d_ff": 2048, "intermediate_size": 64}, "d_ff=2048 and intermediate_size=64 disagree"),
        ({"dropout": 1.5}, "dropout is 1.5; it must be a rate between 0 and 1"),
        ({"label_smoothing": -0.1}, "label_smoothing is -0.1; it must be a rate between 0 and 1"),
        ({"dropout": float("nan")}, "dropout is nan; it must be a rate between 0 and 1"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder is False; this model has an encoder"),
        ({"is_decoder": True}, "is_decoder is True; this model has an encoder"),
        ({"vocab_size": 0}, "vocab_size is 0; it must be from 1 to 2147483647"),
        ({"d_k": 0}, "d_k is 0; it must be from 1 to"),
        ({"decoder_layers": 0}, "decoder_layers is 0; it must be from 1 to 1000"),
        ({"layer_norm_eps": 0.0}, r"layer_norm_eps is 0.0; it must be above 0"),
        ({"initializer_factor": 0}, r"initializer_factor is 0; it must be above 0"),
        ({"position_offset": -1}, "position_offset is -1; it must be at least 0"),
        ({"position_offset": 2, "position_embedding_type": "learned"}, "it must be .* 0 for learned positions"),
        ({"activation_function": "rely"}, 'activation_function is "rely"; the paper uses "relu"'),
        (
            {"source_vocab_size": 5, "pad_token_id": 7},
            r"pad_token_id is 7; it must lie between 0 and source_vocab_size",
        ),
        ({"eos_token_id": 37000}, r"eos_token_id is 37000; it must lie between 0 and vocab_size - 1 \(36999\)"),
    ],
)
def test_bad_values(fields, message):
    with pytest.raises(ValueError, match=message):
        VanillaTransformerConfig(**fields)


def test_heads_need_not_divide_d_model_where_d_k_and_d_v_are_given():
    assert VanillaTransformerConfig(d_model=510, d_k=64, d_v=64).key_dim == 64


@pytest.mark.parametrize(
    "fields", [{"d_model": "512"}, {"dropout": True}, {"tie_word_embeddings": 1}, {"position_embedding_type": "x"}]
)
def test_wrong_types(fields):
    with pytest.raises(Exception, match=f"Validation error for field '{next(iter(fields))}'"):
        VanillaTransformerConfig(**fields)


def test_a_bad_value_set_later_is_not_saved(tmp_path):
    config = VanillaTransformerConfig()
    config.num_heads = 7
    with pytest.raises(Exception, match="not divisible by num_heads"):
        config.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


def test_unknown_row_lists_all():
    with pytest.raises(ValueError, match=r'"A h=3" is no row of Table 3; choose one of: .*"A h=4".*"E", "big"'):
        VanillaTransformerConfig.from_paper("A h=3")


def test_an_unknown_field_of_a_row_is_refused():
    with pytest.raises(TypeError, match=r"d_modle is no field of VanillaTransformerConfig; .*, such as d_model"):
        VanillaTransformerConfig.from_paper("base", d_modle=3)
    assert VanillaTransformerConfig.from_paper("base", hidden_size=16, attn_implementation="eager").d_model == 16
