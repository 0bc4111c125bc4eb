"""Files of arguments: strings stay what was written, other values are read as on the command line."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from hf_vanilla_transformer.apps.cli.parser import given_arguments
from hf_vanilla_transformer.support.build_arguments import option
from hf_vanilla_transformer.support.user_errors import InputError
from hf_vanilla_transformer.training.run_arguments import Settings
from hf_vanilla_transformer.training.run_saving import save_arguments


@dataclass
class ExampleArguments:
    """Arguments of each type."""

    text: str = option("default", "A text.")
    name: str | None = option(None, "A text that may be missing.")
    texts: list[str] | None = option(None, "Several texts.")
    count: int = option(1, "A whole number.")
    rate: float = option(0.5, "A number.")
    limit: float | None = option(None, "A number that may be missing.")
    is_fast: bool = option(False, "A truth value.")
    mode: Literal["true", "false", "never"] | None = option(None, "A choice.")
    settings: dict | str | None = option(None, "Names and values.")


def read_file(folder: Path, content: str, name: str = "arguments.yaml") -> dict[str, object]:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return given_arguments(ExampleArguments, "", ["--config", str(path)])


@pytest.mark.parametrize(
    "text",
    [
        "1.10",
        "012",
        "0x10",
        "12:30:45",
        "1e5",
        "47e5103",
        "1_000",
        "no",
        "off",
        "Yes",
        "true",
        "2026-11-27",
        "=",
        ".inf",
    ],
)
def test_read_recipe_strings_stay_what_was_written(tmp_path, text):
    content = f"text: {text}\nname: {text}\ntexts: [{text}, a]\n"
    assert read_file(tmp_path, content) == {"text": text, "name": text, "texts": [text, "a"]}
    assert read_file(tmp_path, f"texts: {text}\n") == {"texts": [text]}
    assert read_file(tmp_path, f"text: '{text}'\nname: \"{text}\"\n") == {"text": text, "name": text}


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("count: 012", 12),
        ('count: "12"', 12),
        ("rate: 5e-4", 0.0005),
        ("rate: 1.0e-05", 0.00001),
        ("rate: .inf", math.inf),
        ("rate: -.INF", -math.inf),
        ("is_fast: yes", True),
        ("is_fast: off", False),
        ("is_fast: On", True),
        ("mode: true", "true"),
        ("mode: never", "never"),
    ],
)
def test_read_recipe_converts_as_the_command_line(tmp_path, line, value):
    assert read_file(tmp_path, line) == {line.partition(":")[0]: value}


@pytest.mark.parametrize("null", ["null", "~", ""])
def test_read_recipe_null_leaves_an_argument_out(tmp_path, null):
    assert read_file(tmp_path, f"name: {null}\nlimit: {null}\n") == {}
    assert read_file(tmp_path, f"name: '{null}'\n") == {"name": null}


def test_read_recipe_mappings_keep_their_types(tmp_path):
    content = "settings: {a: 1, b: 5e-4, c: 1.10, d: '1.10', e: true, f: null, g: 012, h: 12:30:45, i: [1, x]}"
    values = {"a": 1, "b": 0.0005, "c": 1.1, "d": "1.10", "e": True, "f": None, "g": 12, "h": "12:30:45", "i": [1, "x"]}
    assert read_file(tmp_path, content) == {"settings": values}


def test_read_recipe_json(tmp_path):
    values = {"text": "\U0001f642", "name": "1.10", "count": 12, "rate": 1e-9, "is_fast": True, "settings": {"a": 1.5}}
    assert read_file(tmp_path, json.dumps({**values, "limit": None}), "arguments.json") == values
    assert read_file(tmp_path, json.dumps(values, indent="\t"), "arguments.json") == values
    assert read_file(tmp_path, '{"text": 1.10, "texts": [012]}'.replace("012", "1e5"), "arguments.json") == {
        "text": "1.10",
        "texts": ["1e5"],
    }


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("count: many", ["count", "'many'"]),
        ("count: null", ["count", "None"]),
        ("text: null", ["text", "None"]),
        ("texts: [a, null]", ["texts", "None"]),
        ("texts: [[a]]", ["texts"]),
        ("text: [a, b]", ["text", "one value"]),
        ("text: {a: b}", ["text", "one value"]),
        ("rate: 12:30", ["rate", "12:30"]),
        ("settings: {a: no}", ["settings", "no", "quotation marks"]),
        ("count: 1\ncount: 2", ["count", "twice"]),
        ("unknown: 1", ["unknown"]),
        ("- a", ["names and values"]),
    ],
)
def test_read_recipe_wrong_values_are_named(tmp_path, content, words):
    with pytest.raises(ValueError, match=r"arguments\.yaml") as error:
        read_file(tmp_path, content)
    for word in words:
        assert word in str(error.value)


def test_read_recipe_empty_list(tmp_path):
    assert read_file(tmp_path, "texts: []\n") == {"texts": []}


def settings_of(folder: Path, **arguments: object) -> Settings:
    """The settings of a run that is resumed in a folder in which an earlier one wrote its arguments."""
    save_arguments(Settings.from_arguments(output_dir=str(folder), **arguments))
    return Settings.from_arguments(output_dir=str(folder), resume_from_checkpoint="last")


@pytest.mark.parametrize(
    "text", ["1e5", "47e5103", "1.10", "no", "null", "", " a", "a\x85b", "a\u2028b", "\ud800", "a: b"]
)
def test_arguments_yaml_carries_strings(tmp_path, text):
    settings = settings_of(tmp_path, revision=text, config_overrides={"activation_function": text})
    assert settings.model.revision == text
    assert settings.model.config_overrides == {"activation_function": text}
    settings = settings_of(tmp_path, teacher=[text, "b"])
    assert settings.distillation.teacher == [text, "b"]


def test_arguments_yaml_carries_numbers_and_truth_values(tmp_path):
    arguments = {"learning_rate": 1e-05, "seed": 12, "bf16": False, "length_penalty": 2.0}
    overrides = {"dropout": 1e-05, "d_k": 8, "attention_bias": False}
    settings = settings_of(tmp_path, **arguments, config_overrides=overrides)
    assert {name: settings.given_arguments[name] for name in arguments} == arguments
    assert settings.model.config_overrides == overrides


@pytest.mark.parametrize("line", ["save_strategy: no", "report_to: none", "revision: 1.10"])
def test_settings_of_a_resumed_run_are_those_of_the_command_line(tmp_path, line):
    (tmp_path / "arguments.yaml").write_text(line)
    name, _, text = line.partition(": ")
    settings = Settings.from_arguments(output_dir=str(tmp_path), resume_from_checkpoint="last")
    expected = given_arguments(Settings, "", [f"--{name}", text])
    assert settings.given_arguments[name] == expected[name]


def test_a_file_that_is_not_utf8_is_named(tmp_path):
    path = tmp_path / "arguments.yaml"
    path.write_bytes(b"text: \xff\n")
    with pytest.raises(InputError, match=r"arguments\.yaml cannot be read .*'utf-8' codec can't decode byte 0xff"):
        given_arguments(ExampleArguments, "", ["--config", str(path)])
