"""One table lists the settings of the search, and other modules derive their lists from it."""

import ast
from pathlib import Path

import pytest

import hf_vanilla_transformer
from hf_vanilla_transformer.model.generation_settings import SEARCH_SETTINGS, check_search
from tests.models import small_model


PACKAGE = Path(hf_vanilla_transformer.__file__).parent


def longest_list_of_settings(path: Path) -> int:
    """Return how many settings of the table the longest tuple, list or set of a module names."""
    longest = 0
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            names = {item.value for item in node.elts if isinstance(item, ast.Constant)}
            longest = max(longest, len(names & SEARCH_SETTINGS.keys()))
    return longest


def test_no_other_module_lists_settings_of_the_search():
    # Two names together are a question, such as which of them the caller gave.
    assert [path for path in PACKAGE.rglob("*.py") if longest_list_of_settings(path) > 2] == []


@pytest.mark.parametrize("name", [name for name, setting in SEARCH_SETTINGS.items() if setting.limits is not None])
def test_numbers_outside_of_the_table_are_refused(name):
    least, most = SEARCH_SETTINGS[name].limits
    for allowed in (least, most):
        check_search({name: allowed})
    for refused in (least - 1, most + 1, 1.5):
        with pytest.raises(ValueError, match=rf"{name} is {refused}; it must be a whole number from {least} to"):
            check_search({name: refused})


def test_settings_that_transformers_lacks_are_those_of_the_table():
    settings = small_model().generation_config
    stock = settings._get_default_generation_params().keys() | {"max_new_tokens", "max_length"}
    for name, setting in SEARCH_SETTINGS.items():
        assert setting.is_own == (name not in stock | set(vars(type(settings)()))), name
