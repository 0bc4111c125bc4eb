"""recipes/accelerate: accelerate reads these files, and knows every name in them."""

from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import DistributedType

from tests.models import small_model


pytestmark = [pytest.mark.slow, pytest.mark.several_processes]

FOLDER = Path(__file__).parents[2] / "hf_vanilla_transformer" / "recipes" / "accelerate"
KINDS = {
    "ddp.yaml": DistributedType.MULTI_GPU,
    "deepspeed.yaml": DistributedType.DEEPSPEED,
    "fsdp2.yaml": DistributedType.FSDP,
}


def test_there_are_no_other_files():
    assert {path.name for path in FOLDER.iterdir()} == set(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_accelerate_reads_it(name):
    config = load_config_from_file(str(FOLDER / name))
    assert config.distributed_type == KINDS[name]
    assert config.mixed_precision == "no"
    # In these two accelerate passes over what it does not know.
    options = vars(launch_command_parser().parse_args(["train.py"]))
    assert {*config.deepspeed_config, *config.fsdp_config} <= set(options)


def test_fsdp_shares_out_the_layers():
    config = load_config_from_file(str(FOLDER / "fsdp2.yaml")).fsdp_config
    model = small_model().model
    layers = {type(layer).__name__ for stack in (model.encoder, model.decoder) for layer in stack.layers}
    assert set(config["fsdp_transformer_layer_cls_to_wrap"].split(",")) == layers
