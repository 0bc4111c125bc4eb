"""model/operations.py: another implementation takes the place of an operation, and the formula stays at hand."""

import pytest
import torch

from hf_vanilla_transformer.acceleration.loss_of_states import smoothed_cross_entropy_without_logits
from hf_vanilla_transformer.model import operations
from hf_vanilla_transformer.model.attention_masks import flash_attention
from hf_vanilla_transformer.model.operations import plain, replace, replaceable, smoothed_cross_entropy_of_states


@pytest.fixture(autouse=True)
def replacements(monkeypatch):
    monkeypatch.setattr(operations, "_REPLACEMENTS", dict(operations._REPLACEMENTS))
    return operations._REPLACEMENTS


@replaceable
def double(x: torch.Tensor) -> torch.Tensor:
    """Return 2 x."""
    return x * 2


def test_the_formula_runs_unless_it_is_replaced():
    x = torch.arange(3)
    assert double(x).tolist() == [0, 2, 4]
    replace(double, lambda x: x + 100)
    assert double(x).tolist() == [100, 101, 102]
    assert plain(double)(x).tolist() == [0, 2, 4]
    assert double.__doc__ == "Return 2 x."


def test_the_last_replacement_counts():
    replace(double, lambda x: x + 1)
    replace(double, lambda x: x + 2)
    assert double(torch.tensor(0)) == 2


def test_a_replaced_operation_is_compiled_as_one_graph():
    replace(double, lambda x: x * 3)
    compiled = torch.compile(lambda x: double(x) + 1, backend="aot_eager", fullgraph=True)
    assert compiled(torch.arange(3)).tolist() == [1, 4, 7]


def test_importing_the_package_replaces_operations(replacements):
    assert replacements[plain(smoothed_cross_entropy_of_states)] is smoothed_cross_entropy_without_logits


def test_flash_attention_without_the_package_is_an_error():
    """That of transformers takes the mask of the source for the queries'."""
    x = torch.zeros(1, 2, 3, 4)
    with pytest.raises(ValueError, match="flash attention needs the package"):
        plain(flash_attention)(torch.nn.Module(), x, x, x, None)


def test_only_declared_operations_are_replaced():
    with pytest.raises(AttributeError, match="__wrapped__"):
        replace(torch.add, torch.mul)
