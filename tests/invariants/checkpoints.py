"""Checkpoints that are the same to the last bit."""

import torch
from safetensors.torch import load_file


def assert_equal(actual, expected, where=""):
    """Two nests of dicts, lists and tensors are the same to the last bit."""
    if isinstance(expected, torch.Tensor):
        assert torch.equal(actual, expected), where
    elif isinstance(expected, dict):
        assert actual.keys() == expected.keys(), where
        for key in expected:
            assert_equal(actual[key], expected[key], f"{where} {key}")
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected), where
        for index, value in enumerate(expected):
            assert_equal(actual[index], value, f"{where} {index}")
    else:
        assert actual == expected, where


def assert_same_weights(actual, expected):
    """Two folders hold the same model."""
    assert_equal(load_file(actual / "model.safetensors"), load_file(expected / "model.safetensors"), "weights")


def assert_same_checkpoint(actual, expected):
    """Weights, moments of Adam, schedule and the states of all random numbers are the same."""
    assert_same_weights(actual, expected)
    states = {path.name for path in expected.iterdir() if path.suffix in (".pt", ".pth")}
    assert {"optimizer.pt", "scheduler.pt"} < states
    assert states == {path.name for path in actual.iterdir() if path.suffix in (".pt", ".pth")}
    for name in states:
        assert_equal(_load(actual / name), _load(expected / name), name)


def _load(path):
    state = torch.load(path, weights_only=False)
    if "numpy" in state:
        generator, keys, *position = state["numpy"]
        state["numpy"] = [generator, torch.as_tensor(keys), *position]
    return state
