import json
import sys

import pytest

from hf_vanilla_transformer.support.lazy_functions import LazyFunctions


def test_a_function_is_imported_when_it_is_first_asked_for(tmp_path, monkeypatch):
    (tmp_path / "lazily_imported.py").write_text("def double(number):\n    return 2 * number\n")
    monkeypatch.syspath_prepend(tmp_path)
    functions = LazyFunctions()
    functions.register("double", "lazily_imported:double")
    assert "lazily_imported" not in sys.modules
    assert functions["double"](21) == 42
    monkeypatch.delitem(sys.modules, "lazily_imported")


def test_names_are_those_registered():
    functions = LazyFunctions()
    functions.register("read", "json:load")
    functions.register("read", "json:loads")
    functions.register("write", "json:dumps")
    assert list(functions) == ["read", "write"]
    assert "read" in functions
    assert "load" not in functions
    assert functions["read"] is json.loads
    with pytest.raises(KeyError):
        functions["load"]
