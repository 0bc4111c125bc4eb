"""What the model uses of transformers' private parts is listed, and the installed transformers has it."""

import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from hf_vanilla_transformer import VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.model.transformers_compatibility import ATTRIBUTES, PARAMETERS
from tests import transformers_names as names


FOLDER = Path(__file__).parents[2] / "hf_vanilla_transformer" / "model"
FILES = sorted(path for path in FOLDER.glob("[a-z]*.py") if path.name != "transformers_compatibility.py")
MODULES = [import_module(f"hf_vanilla_transformer.model.{path.stem}") for path in FILES]
LISTED = names.all_listed(PARAMETERS, ATTRIBUTES)


def test_transformers_has_the_listed_parameters():
    assert list(names.missing_parameters(PARAMETERS)) == []


def test_transformers_has_the_listed_attributes():
    assert list(names.missing_attributes(ATTRIBUTES)) == []


def test_overrides_accept_what_transformers_passes():
    assert list(names.refused_parameters(MODULES, PARAMETERS)) == []


def test_every_private_override_is_listed():
    assert names.private_overrides(MODULES) - LISTED == set()


def test_every_private_attribute_is_listed():
    assert names.private_uses(FILES, MODULES) - LISTED == set()


def test_every_listed_name_is_used():
    assert LISTED - names.identifiers(FILES) == set()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"_gone": ""}, "transformers:GenerationMixin has no _gone"),
        ({"_prefill": "input_ids, model_kwargs"}, r"_prefill takes \['input_ids', 'generation_config', .* first"),
        ({"_get_logits_processor": "generation_config, *, gone"}, "_get_logits_processor takes .*, not gone"),
    ],
)
def test_a_missing_parameter_is_named(parameters, message):
    (fault,) = names.missing_parameters({"transformers:GenerationMixin": parameters})
    assert re.search(message, fault)


def test_a_missing_attribute_is_named():
    listed = {"transformers:GenerationConfig": ("_gone", "_from_model_config")}
    assert list(names.missing_attributes(listed)) == ["transformers:GenerationConfig has no _gone"]


def test_names_that_are_not_listed_are_found(tmp_path):
    path = tmp_path / "other.py"
    path.write_text(
        "class Model(PreTrainedModel):\n"
        "    def forward(self):\n"
        "        self._own = self._tied_weights_keys\n"
        "        self._forward_hooks, torch._C._other\n"
        "        return getattr(self.generation_config, '_theirs', self._own)\n"
    )
    assert names.private_uses([path], MODULES) == {"_tied_weights_keys", "_theirs"}


def test_an_override_that_refuses_a_parameter_is_found():
    class Model(VanillaTransformerForConditionalGeneration):
        def _prefill(self, input_ids, generation_config, model_kwargs):
            """Without `is_first_iteration`, which transformers may pass."""

    module = ModuleType(Model.__module__)
    module.Model = Model
    (fault,) = names.refused_parameters([module], PARAMETERS)
    assert fault == "Model._prefill does not accept ['is_first_iteration']"
    assert names.private_overrides([module]) == {"_prefill"}
