"""What the page says; tests/clients/test_page.py uses it in a browser."""

from importlib.util import find_spec

import pytest

from hf_vanilla_transformer import translate


pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("fastapi", "uvicorn", "prometheus_client", "babel")),
    reason="the extra serve is not installed",
)


def test_the_page_says_what_may_be_wrong(model, tokenizer):
    pytest.importorskip("gradio")
    from hf_vanilla_transformer.apps.serving.page.gradio_page import _describe_flags

    (fine,) = translate(model, tokenizer, ["nine"], return_details=True)
    (cut,) = translate(model, tokenizer, ["forty-two"], return_details=True, max_new_tokens=2)
    assert _describe_flags(fine) == ""
    assert _describe_flags(cut) == "The translation was truncated at the length limit."
    every = cut._replace(flags=frozenset({"split", "longer_than_training", "truncated", "repetition"}))
    assert _describe_flags(every).count(".") == 4
