import pytest

from hf_vanilla_transformer.support.language_codes import language_of


@pytest.mark.parametrize(
    ("code", "language"),
    [
        ("en", "en"),
        ("en_US", "en"),
        ("pt-BR", "pt"),
        ("es-419", "es"),
        ("sr-Latn-RS", "sr"),
        ("zho_Hans", "zh"),
        ("cmn", "zh"),
        ("jpn_Jpan", "ja"),
        ("ger", "de"),
        ("deu", "de"),
        ("yue_Hant", "yue"),
        ("arb_Arab", "ar"),
        ("swh_Latn", "sw"),
        ("tgt", None),
        ("EN", None),
        ("english", None),
        ("xx", None),
        ("", None),
        (None, None),
    ],
)
def test_language_of(code, language):
    assert language_of(code) == language
