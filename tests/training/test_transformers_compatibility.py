"""What training uses of the Trainer's private parts is listed, and the installed transformers has it."""

from importlib import import_module
from pathlib import Path

from hf_vanilla_transformer.training.transformers_compatibility import ATTRIBUTES, PARAMETERS
from tests import transformers_names as names


PACKAGE = Path(__file__).parents[2] / "hf_vanilla_transformer"
FILES = sorted(
    path
    for room in ("data", "training")
    for path in (PACKAGE / room).glob("[a-z]*.py")
    if path.name != "transformers_compatibility.py"
)
MODULES = [import_module(f"hf_vanilla_transformer.{path.parent.name}.{path.stem}") for path in FILES]
LISTED = names.all_listed(PARAMETERS, ATTRIBUTES)
# Of datasets.Dataset, and of every NamedTuple.
OF_OTHERS = {"_fingerprint", "_indices", "_replace"}


def test_transformers_has_the_listed_parameters():
    assert list(names.missing_parameters(PARAMETERS)) == []


def test_transformers_has_the_listed_attributes():
    assert list(names.missing_attributes(ATTRIBUTES)) == []


def test_overrides_accept_what_transformers_passes():
    assert list(names.refused_parameters(MODULES, PARAMETERS)) == []


def test_every_private_name_is_listed():
    assert names.private_overrides(MODULES) - LISTED == set()
    assert names.private_uses(FILES, MODULES) - OF_OTHERS - LISTED == set()


def test_every_listed_name_is_used():
    assert LISTED - names.identifiers(FILES) == set()
