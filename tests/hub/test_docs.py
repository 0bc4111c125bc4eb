"""The code of docs/share.md works."""

import pytest

from tests.hub.server import WRITER
from tests.hub.test_push_pull import ALWAYS_THERE, OF_A_MODEL, OF_A_TOKENIZER
from tests.model.test_remote_code import SHIPPED


pytestmark = pytest.mark.long


def test_the_blocks_of_the_page(hub, run_child, tmp_path):
    result = run_child("run_docs.py", tmp_path, token=WRITER)
    pushed = ALWAYS_THERE | OF_A_MODEL | OF_A_TOKENIZER | SHIPPED
    assert set(hub.repository("user/numbers").head().files) == pushed | {"scores.json"}
    assert set(hub.repository("user/my-numbers").find("v1").files) == pushed
    assert set(hub.repository("user/my-run").head().files) == pushed | {"scores.json"}
    assert "{'source': 'one', 'target': 'eins'}" in result.stdout
