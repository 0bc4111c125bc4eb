"""benchmarks/candidates/position_table.py equals the formula bit by bit."""

import pytest
import torch

from benchmarks.candidates.position_table import positions_from_table
from hf_vanilla_transformer.model.modeling_vanilla_transformer import sinusoidal_positions


@pytest.mark.parametrize("exponent_divisor", [32, 30])
@pytest.mark.parametrize("bound", [7, 256, 257, 3000])
def test_positions(bound, exponent_divisor):
    generator = torch.Generator().manual_seed(0)
    position_ids = torch.randint(bound, (3, 40), generator=generator)
    position_ids[0, 0] = bound - 1
    found = positions_from_table(sinusoidal_positions, position_ids, bound, 32, exponent_divisor)
    assert torch.equal(found, sinusoidal_positions(position_ids, 32, exponent_divisor))


def test_the_formula_is_computed_once_until_the_table_is_too_small():
    computed = []

    def formula(position_ids, d_model):
        computed.append(position_ids.numel())
        return sinusoidal_positions(position_ids, d_model)

    position_ids = torch.arange(9)[None]
    for bound in (9, 200, 256, 300, 512, 9):
        positions_from_table(formula, position_ids, bound, 8)
    assert computed == [256, 512]
    positions_from_table(formula, position_ids, 9, 16)
    assert computed == [256, 512, 256]


def test_the_table_is_made_without_gradients_in_inference_and_then_trains():
    def formula(position_ids, d_model):
        return sinusoidal_positions(position_ids, d_model)

    position_ids = torch.arange(9)[None]
    with torch.inference_mode():
        positions_from_table(formula, position_ids, 9, 8)
    x = torch.zeros(1, 9, 8, requires_grad=True)
    ((x + positions_from_table(formula, position_ids, 9, 8)) ** 2).sum().backward()
    assert x.grad is not None
