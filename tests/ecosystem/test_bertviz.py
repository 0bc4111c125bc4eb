"""BertViz draws our attention weights as they are: the block of docs/see_inside.md, and the numbers in its HTML."""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.apps.pictures.attention_by_hand import attention_by_hand
from tests.ecosystem.documentation import blocks, run


# `make test` installs it apart from the environment.
pytestmark = pytest.mark.skipif(find_spec("bertviz") is None, reason="it takes bertviz")
NAMES = {"Encoder": "encoder", "Decoder": "decoder", "Cross": "cross"}


def parameters(html: str) -> dict:
    """What the script of a view draws."""
    view, _ = json.JSONDecoder().raw_decode(html[html.index('{"attention": [') :])
    return view


def test_views_hold_the_attention_weights(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = blocks("BertViz", page="see_inside.md")
    names = run(block)
    model, source = names["model"], names["inputs"].input_ids[0].tolist()
    target = names["decoder_input_ids"][0].tolist()
    expected = attention_by_hand(model, source, target)
    words = {
        "encoder": ["f", "o", "r", "ty", "-", "t", "w", "o", "</s>"],
        "decoder": ["<s>", "z", "w", "ei", "und", "v", "i", "er", "zig"],
    }
    words["cross"] = words["decoder"]
    for file in ("head_view.html", "model_view.html"):
        drawn = {NAMES[view["name"]]: view for view in parameters(Path(file).read_text(encoding="utf-8"))["attention"]}
        assert drawn.keys() == expected.keys()
        for attention, view in drawn.items():
            np.testing.assert_allclose(view["attn"], expected[attention], atol=1e-5)
            assert view["left_text"] == words[attention]
            assert view["right_text"] == words["decoder" if attention == "decoder" else "encoder"]
