"""Every way to decode that transformers has built in, on models whose translations vary with the source."""

import pytest
import torch

from hf_vanilla_transformer.acceleration import cpu_search
from hf_vanilla_transformer.acceleration.cpu_decoder import CPUDecoder
from tests.generation.by_hand import EOS
from tests.models import decisive_model, pad, sentences, small_model


# "assisted" is short for an argument that holds a model.
MODES = {
    "greedy": {"num_beams": 1},
    "sampling": {"num_beams": 1, "do_sample": True},
    "beams": {"num_beams": 3},
    "sampled beams": {"num_beams": 3, "do_sample": True},
    "assisted": {"num_beams": 1, "assisted": True},
    "prompt lookup": {"num_beams": 1, "prompt_lookup_num_tokens": 2},
}
ONE_BY_ONE_MODES = ("assisted", "prompt lookup")  # transformers takes batches of one for these
ALL_MODES = pytest.mark.parametrize("mode", MODES)
BATCH_MODES = pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in ONE_BY_ONE_MODES])
# For what steps are not made for, such as prefixes and returned dictionaries, and where nothing is decoded.
NEVER_BY_STEPS = pytest.mark.parametrize("path", ["never steps"], indirect=True)


def in_each_way(*modes):
    """Parameters `mode` and `path`: decoding by steps and by modules, and one by one never by steps."""
    paths = {mode: ["never steps"] if mode in ONE_BY_ONE_MODES else ["steps", "modules"] for mode in modes}
    ways = [(mode, path) for mode in modes for path in paths[mode]]
    return pytest.mark.parametrize(("mode", "path"), ways, indirect=["path"])


STEPS = 10

SENTENCES = sentences(9, 4, 6)


def ending_model(**overrides):
    """A decisive model; one of `SENTENCES` has a short translation, and others go on."""
    model = decisive_model(**overrides)
    with torch.no_grad():
        model.lm_head.weight[EOS].mul_(2)
    return model


@pytest.fixture(autouse=True, params=["steps", "modules"])
def path(request, monkeypatch):
    """Decoding by steps, which must then happen, or by calling the model's modules.

    That is done where steps are kept from happening, "modules", and where nobody takes any, "never steps".
    """
    if request.param == "steps" and request.config.getoption("--plain-operations"):
        pytest.skip("without acceleration/ nothing decodes by steps")
    built = []

    def build(*args):
        built.append(True)
        return CPUDecoder(*args)

    monkeypatch.setattr(cpu_search, "CPUDecoder", build)
    if request.param == "modules":
        monkeypatch.setattr(cpu_search, "supports_cpu_decoder", lambda model: False)
    yield
    assert bool(built) == (request.param == "steps")


@pytest.fixture(scope="package")
def model():
    return ending_model()


@pytest.fixture(scope="package")
def assistant():
    """Smaller, and often of another opinion."""
    model = decisive_model(seed=0, encoder_layers=1, decoder_layers=1, d_ff=16)
    model.generation_config.num_assistant_tokens = 3
    return model


@pytest.fixture(scope="package")
def endless():
    """A model that never ends a sentence by itself."""
    model = small_model()
    with torch.no_grad():
        model.model.shared.weight[EOS] = 0
        model.model.decoder.layers[-1].final_layer_norm.weight.mul_(5)
    return model


@pytest.fixture(scope="package")
def decode(assistant):
    """`generate()` in one of `MODES`, with a seed and at most `STEPS` new tokens."""

    def run(model, mode, *args, seed=0, **kwargs):
        options = {"max_new_tokens": STEPS, **MODES[mode], **kwargs}
        if options.pop("assisted", False):
            options["assistant_model"] = assistant
        torch.manual_seed(seed)
        return model.generate(*args, **options)

    return run


def batches(mode, rows=SENTENCES, **padding):
    """Ids and mask of a mode's batches: all sentences together, or each by itself, with extra padding."""
    groups = [[row] for row in rows] if mode in ONE_BY_ONE_MODES else [rows]
    return [pad(group, **padding) for group in groups]


def real_tokens(ids, mask):
    """The rows of `(batch, length)` ids without their padding."""
    return [row[keep.bool()] for row, keep in zip(ids, mask, strict=True)]


def generated_lengths(model, output):
    """Tokens after `<s>`, `</s>` included, padding not."""
    return (output[:, 1:] != model.config.pad_token_id).sum(dim=-1).tolist()


def until_end(row, eos=(EOS,)):
    """A row of `generate()`'s output as a list, truncated after its first `</s>`."""
    tokens = row.tolist()
    ends = [index for index, token in enumerate(tokens) if token in eos]
    return tokens[: ends[0] + 1] if ends else tokens
