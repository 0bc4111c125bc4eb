import ast
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

import hf_vanilla_transformer
from hf_vanilla_transformer import registration
from hf_vanilla_transformer.apps import conversion, pictures
from hf_vanilla_transformer.apps.cli.main import VERBS
from hf_vanilla_transformer.evaluation import metrics
from tests.models import small_config


def test_auto_classes_know_the_model():
    config = small_config()
    assert type(AutoConfig.for_model("vanilla_transformer")) is hf_vanilla_transformer.VanillaTransformerConfig
    assert type(AutoModel.from_config(config)) is hf_vanilla_transformer.VanillaTransformerModel
    model = AutoModelForSeq2SeqLM.from_config(config)
    assert type(model) is hf_vanilla_transformer.VanillaTransformerForConditionalGeneration


def test_registering_twice_changes_nothing():
    registration.register()
    registration.register()
    test_auto_classes_know_the_model()


def test_public_names_exist():
    names = {}
    exec("from hf_vanilla_transformer import *", names)
    assert {"Bleu", "VanillaTransformerConfig", "translate"} <= set(hf_vanilla_transformer.__all__) <= names.keys()
    assert {"Bleu", "__version__", "registration"} <= set(dir(hf_vanilla_transformer))
    assert names["Bleu"] is hf_vanilla_transformer.Bleu is metrics.Bleu
    with pytest.raises(AttributeError, match="module 'hf_vanilla_transformer' has no attribute 'BLEU'"):
        hf_vanilla_transformer.BLEU  # noqa: B018


def test_public_functions_of_applications_are_those_of_the_package():
    for application in (conversion, pictures):
        for name in application.__all__:
            assert getattr(hf_vanilla_transformer, name) is getattr(application, name)
            assert name in hf_vanilla_transformer.__all__


def test_what_the_verbs_do_has_the_names_of_the_verbs():
    verbs = ("align", "distill", "evaluate", "plan", "score", "train", "translate")
    assert {*verbs} <= VERBS.keys()
    for verb in verbs:
        assert getattr(hf_vanilla_transformer, verb).__name__ == verb


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(hf_vanilla_transformer.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    imported = {alias.asname: statement.module for statement in block.body for alias in statement.names}
    assert imported == hf_vanilla_transformer._MODULES_BY_NAME


def test_each_name_is_imported_on_first_use():
    code = (
        "import sys, hf_vanilla_transformer as package\n"
        "assert not {'datasets', 'evaluate', 'sacrebleu'} & sys.modules.keys()\n"
        "package.translate, package.load_engine\n"
        "assert not {'datasets', 'evaluate', 'sacrebleu'} & sys.modules.keys()\n"
        "package.Bleu\n"
        "assert {'datasets', 'evaluate', 'sacrebleu'} <= sys.modules.keys()\n"
        "assert 'hf_vanilla_transformer.training.run' not in sys.modules\n"
        "assert package.train.__module__ == package.distill.__module__ == 'hf_vanilla_transformer.training.run'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
