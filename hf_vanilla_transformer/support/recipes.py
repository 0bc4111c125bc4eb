"""Recipes: settings of named runs, in the package or in files of YAML or JSON."""

import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from .user_errors import InputError


RECIPE_SUFFIXES = (".yaml", ".yml", ".json")


class _Loader(yaml.SafeLoader):
    """Reads 5e-4 as a number, as YAML 1.2 and JSON do; PyYAML needs a point and a sign."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def recipes() -> list[str]:
    """The names of the recipes in the package."""
    names = (Path(each.name) for each in files("hf_vanilla_transformer").joinpath("recipes").iterdir())
    return sorted(name.stem for name in names if name.suffix == ".yaml")


def read_recipe(config: str) -> dict[str, Any]:
    """The arguments of a recipe in the package, or of a file, whose name ends in .yaml, .yml or .json.

    Raises FileNotFoundError, or ValueError if no recipe has this name, or the file holds no names and values.
    """
    try:
        settings = yaml.load(_read(config), _Loader)
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"{config} is neither YAML nor JSON: {error}") from error
    if not isinstance(settings, dict):
        raise InputError(f"{config} must hold names and values.")
    return settings


def _read(config: str) -> str:
    if Path(config).suffix.lower() in RECIPE_SUFFIXES:
        if not Path(config).is_file():
            raise FileNotFoundError(f"{config} does not exist; name a YAML or JSON file of arguments.")
        return Path(config).read_text(encoding="utf-8")
    if config not in recipes():
        raise InputError(
            f'config is "{config}"; give a file that ends in .yaml or .json, or a recipe: {", ".join(recipes())}.'
        )
    return files("hf_vanilla_transformer").joinpath("recipes", f"{config}.yaml").read_text(encoding="utf-8")
