import pytest

from tests.models import patch_everywhere


@pytest.fixture(params=["eager", "sdpa", "vanilla_transformer"])
def attn_implementation(request, monkeypatch):
    """How attention is computed; ours by products, as on CPUs with AVX-512, for elsewhere it is sdpa in evaluation."""
    if request.param == "vanilla_transformer":
        patch_everywhere(monkeypatch, "has_avx512", lambda: True)
    return request.param
