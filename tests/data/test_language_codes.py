import pytest

from hf_vanilla_transformer.data.language_codes import language_of


@pytest.mark.parametrize(
    ("code", "language"),
    [
        ("en", "en"),
        ("en_US", "en"),
        ("pt-BR", "pt"),
        ("EN", None),
        ("english", None),
        ("xx", None),
        ("", None),
        (None, None),
    ],
)
def test_language_of(code, language):
    assert language_of(code) == language
