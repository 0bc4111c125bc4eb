"""Read and write recipes: named sets of run arguments, bundled with the package or stored in YAML or JSON files.

If an argument is a string, it gets exactly the text that is written in the file. YAML's own types would change the
text: they read `1.10` as 1.1, `012` as 10, `no` as false, and a commit such as `47e5103` as a number.
"""

import argparse
import json
import re
from collections.abc import Mapping
from dataclasses import Field, field, fields, make_dataclass
from importlib.resources import files
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import yaml
from transformers import HfArgumentParser

from .build_arguments import dataclasses_in
from .user_errors import InputError, UserError


RECIPE_SUFFIXES = (".yaml", ".yml", ".json")

_STRING_TAG = "tag:yaml.org,2002:str"
_AMBIGUOUS_TAG = "!ambiguous"
# YAML 1.1 booleans that the command line does not know.
_TRUTH_VALUES = {"on": "true", "off": "false"}
# YAML writes `.inf` and `.nan`. Python's float() reads them only without the dot.
_INFINITY_OR_NAN = re.compile(r"(?P<sign>[-+]?)\.(?P<name>inf|nan)", re.IGNORECASE)


class _Resolver(NamedTuple):
    """A rule by which the YAML parser recognizes the type of a scalar without quotation marks.

    The fields are the arguments of PyYAML's `add_implicit_resolver`, in the same order.

    Args:
        tag: the type that matching scalars get, as a YAML tag.
        form: a regular expression that matches scalars of this type.
        first_characters: the characters with which these scalars may begin.
    """

    tag: str
    form: re.Pattern[str]
    first_characters: list[str]


_NULL = _Resolver("tag:yaml.org,2002:null", re.compile(r"(~|null|Null|NULL|)\Z"), ["~", "n", "N", ""])
_MERGE = _Resolver("tag:yaml.org,2002:merge", re.compile(r"<<\Z"), ["<"])
# YAML 1.2 numbers, which have the same forms as in JSON. PyYAML by itself implements YAML 1.1.
_INTEGER = _Resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?[0-9]+\Z"), list("-+0123456789"))
_FLOAT = _Resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z"),
    list("-+.0123456789"),
)
_BOOLEAN = _Resolver("tag:yaml.org,2002:bool", re.compile(r"(true|True|TRUE|false|False|FALSE)\Z"), list("tTfF"))
# YAML 1.1 reads these words as booleans, and YAML 1.2 reads them as strings.
_AMBIGUOUS = _Resolver(_AMBIGUOUS_TAG, re.compile(r"(yes|no|on|off)\Z", re.IGNORECASE), list("yYnNoO"))


class _AmbiguousWord(str):
    """A word such as `no` that is written without quotation marks, so its author may mean a string or a boolean."""


class _Loader(yaml.SafeLoader):
    """Base class of the YAML loaders below. It recognizes no YAML 1.1 types, and it rejects duplicate names."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Read a mapping. Raises ComposerError if a name occurs in it twice.

        PyYAML by itself would use the last of the two values. `anchor` is a label in the file, which PyYAML passes on.
        """
        node = super().compose_mapping_node(anchor)
        names: set[str] = set()
        # The value of the node is a list of pairs: the node of a key, and the node of its value.
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in names:
                raise yaml.composer.ComposerError(None, None, f'"{key.value}" stands in it twice', key.start_mark)
            names.add(key.value)
        return node

    def construct_text(self, node: yaml.ScalarNode) -> str:
        return node.value

    def construct_integer(self, node: yaml.ScalarNode) -> int:
        # PyYAML's own constructor would read 012 as an octal number.
        return int(node.value)

    def construct_number(self, node: yaml.ScalarNode) -> float:
        # PyYAML's own constructor would also read numbers with colons, such as 1:30, which YAML 1.2 does not have.
        return float(_python_float(node.value))

    def construct_ambiguous_word(self, node: yaml.ScalarNode) -> _AmbiguousWord:
        return _AmbiguousWord(node.value)


class _TextLoader(_Loader):
    """A YAML loader that reads each scalar as the text that is written in the file. Only `null` becomes None."""


class _ValueLoader(_Loader):
    """A YAML loader that reads numbers, booleans and `null` by the rules of YAML 1.2."""


class _Dumper(yaml.SafeDumper):
    """A YAML writer that quotes strings so that both loaders above, and YAML 1.1 loaders, read them unchanged."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        # Within double quotes, PyYAML escapes characters that it would otherwise change, such as U+0085, which is a
        # line break in YAML.
        style = None if text.isprintable() else '"'
        return self.represent_scalar(_STRING_TAG, text, style=style)


# PyYAML stores these rules in class attributes. A subclass copies the rules of its base class when it adds its first
# own rule, so the rules of `_ValueLoader` do not affect `_TextLoader`. The first rule that matches a scalar decides, so
# integers must come before floats, whose form also matches integers.
# Both loaders recognize `null`. Only _ValueLoader recognizes the other types.
_Loader.yaml_implicit_resolvers = {}
_Loader.add_implicit_resolver(*_NULL)
# As a key, "<<" merges a second mapping into its own mapping. As a value, it is ordinary text.
_Loader.add_implicit_resolver(*_MERGE)
_Loader.add_constructor(_MERGE.tag, _Loader.construct_text)
for _resolver in (_BOOLEAN, _INTEGER, _FLOAT, _AMBIGUOUS):
    _ValueLoader.add_implicit_resolver(*_resolver)
_ValueLoader.add_constructor(_INTEGER.tag, _Loader.construct_integer)
_ValueLoader.add_constructor(_FLOAT.tag, _Loader.construct_number)
_ValueLoader.add_constructor(_AMBIGUOUS.tag, _Loader.construct_ambiguous_word)
# PyYAML puts quotation marks around strings that YAML 1.1 would read as a different type. These forms also need
# quotation marks, but PyYAML does not know them: YAML 1.2 numbers, such as 5e-4, and words with any capitalization,
# such as yEs.
for _resolver in (_INTEGER, _FLOAT, _AMBIGUOUS):
    _Dumper.add_implicit_resolver(*_resolver)
_Dumper.add_representer(str, _Dumper.represent_text)


class _Content(NamedTuple):
    """The names and values in a recipe file, read twice: once as texts and once with types.

    Both dicts have the same structure: where one has null, a mapping, a list or a scalar, so does the other.

    Args:
        texts: each scalar as the text that is written in the file.
        values: the same names, with numbers, booleans and null converted to their Python types.
    """

    texts: dict[str, object]
    values: dict[str, object]


class _Argument(NamedTuple):
    """An argument that a recipe may set.

    Args:
        name: the argument's name.
        annotation: the argument's type.
        types: the types that a value may have: the members of the annotation if it is a union, or else only itself.
        default: the default value.
        is_positional: whether the command line takes this argument's values, a list, without the argument's name.
    """

    name: str
    annotation: object
    types: set[object]
    default: object
    is_positional: bool

    def takes_mapping(self) -> bool:
        """Return True if a value of this argument may be a mapping."""
        origins = {get_origin(value_type) for value_type in self.types}
        return dict in self.types or dict in origins

    def takes_list(self) -> bool:
        """Return True if a value of this argument may be a list."""
        origins = {get_origin(value_type) for value_type in self.types}
        return list in origins


def recipes() -> list[str]:
    """Return the names of the recipes that are bundled with the package, in alphabetical order."""
    names = []
    for file in files("hf_vanilla_transformer").joinpath("recipes").iterdir():
        path = Path(file.name)
        if path.suffix == ".yaml":
            names.append(path.stem)
    return sorted(names)


def read_recipe(config: str | Path, arguments_class: type) -> dict[str, Any]:
    """Read a recipe's arguments, and convert each to its type in the same way as the command line does.

    If an argument's default is None, the value `null` has the same effect as leaving the argument out. If an argument
    is itself a mapping, such as `config_overrides`, the values in it get their types from YAML 1.2 or JSON.

    Args:
        config: the name of a bundled recipe, or the path of a file that ends in .yaml, .yml or .json.
        arguments_class: the dataclass that defines the arguments, or a `NamedTuple` of several such classes.

    Raises:
        InputError: if the recipe cannot be found or read, or if a name or a value in it is wrong.
    """
    recipe = str(config)
    content = _read(recipe)
    arguments = _arguments_of(arguments_class)
    converted = {}
    # Both dicts of `content` have the same names: `texts` has what the file says, and `values` has Python types.
    for name, text_or_texts in content.texts.items():
        if name not in arguments:
            raise InputError(f'{recipe}: there is no argument "{name}"; --help lists them.')
        argument = arguments[name]
        value = content.values[name]
        keeps_default = value is None and argument.default is None
        if not keeps_default:
            converted[name] = _convert_or_explain(argument, text_or_texts, value, recipe)
    return converted


def _convert_or_explain(argument: _Argument, text_or_texts: object, value: object, recipe: str) -> object:
    """Convert a value as [`_convert`] does. Raise InputError with the recipe and the argument if the value is wrong."""
    try:
        return _convert(argument, text_or_texts, value)
    except (argparse.ArgumentError, ValueError) as error:
        raise InputError(f"{recipe}: {argument.name} is {value!r}: {error}") from error


def format_recipe(arguments: Mapping[str, object]) -> str:
    """Format arguments as YAML text, from which [`read_recipe`] reads the same values."""
    return yaml.dump(dict(arguments), Dumper=_Dumper, allow_unicode=True, sort_keys=False)


def _read(config: str) -> _Content:
    """Read a bundled recipe or a file twice: the values as texts, and the values with their Python types.

    Raises InputError if the content is not a mapping from names to values.
    """
    try:
        text = _read_text(config)
        if config.lower().endswith(".json"):
            content = _parse_json(text)
        else:
            content = _parse_yaml(text)
    except UserError:
        # The message of such an error already names the file or the recipe. This clause must be the first one, because
        # an `InputError` is also a ValueError.
        raise
    except (ValueError, yaml.YAMLError) as error:
        raise InputError(f"{config} cannot be read as YAML or JSON: {error}") from error
    if not isinstance(content.values, dict):
        raise InputError(f"{config} must hold names and values.")
    return content


def _read_text(config: str) -> str:
    """Return the text of a file or of a bundled recipe, without the byte order mark.

    Raises InputError if there is no such file or recipe.
    """
    is_file_name = Path(config).suffix.lower() in RECIPE_SUFFIXES
    if is_file_name:
        if not Path(config).exists():
            raise InputError(
                f'config is "{config}", but there is no such file; give a file that exists, or a recipe: '
                f"{', '.join(recipes())}."
            )
        # The encoding "utf-8-sig" skips a byte order mark at the beginning of the file, if there is one.
        return Path(config).read_text(encoding="utf-8-sig")
    if config not in recipes():
        raise InputError(
            f'config is "{config}"; give a file that ends in .yaml or .json, or a recipe: {", ".join(recipes())}.'
        )
    return files("hf_vanilla_transformer").joinpath("recipes", f"{config}.yaml").read_text(encoding="utf-8")


def _parse_yaml(text: str) -> _Content:
    texts = yaml.load(text, _TextLoader)
    values = yaml.load(text, _ValueLoader)
    return _Content(texts, values)


def _parse_json(text: str) -> _Content:
    # These arguments keep all numbers as texts, including NaN and Infinity. Booleans and null get their Python types,
    # as in `values`, and `_text_of` converts booleans back to text.
    texts = json.loads(text, parse_int=str, parse_float=str, parse_constant=str)
    # `_make_object` raises an error for duplicate names. One of the two passes is enough for this check.
    values = json.loads(text, object_pairs_hook=_make_object)
    return _Content(texts, values)


def _make_object(members: list[tuple[str, object]]) -> dict[str, object]:
    """Convert the members of a JSON object to a dict. Raises ValueError if a name occurs twice."""
    json_object: dict[str, object] = {}
    for name, value in members:
        if name in json_object:
            raise ValueError(f'"{name}" stands in it twice')
        json_object[name] = value
    return json_object


def _arguments_of(arguments_class: type) -> dict[str, _Argument]:
    """Return the type and the default of each argument in an argument class, by the argument's name."""
    arguments = {}
    for dataclass in dataclasses_in(arguments_class):
        # A field's own `type` is a string if its module postpones the evaluation of annotations.
        annotations = get_type_hints(dataclass)
        for argument_field in fields(dataclass):
            # A field with init=False cannot be passed to the class, so it is no argument.
            if argument_field.init:
                arguments[argument_field.name] = _describe(argument_field, annotations[argument_field.name])
    return arguments


def _describe(argument_field: Field[object], annotation: object) -> _Argument:
    """Describe the argument that a dataclass field declares. `annotation` is the type of the field."""
    # Unions have two origins: `Union` for `Optional[int]`, and `UnionType` for `int | None`.
    is_union = get_origin(annotation) in (Union, UnionType)
    types = set(get_args(annotation)) if is_union else {annotation}
    is_positional = bool(argument_field.metadata.get("positional"))
    return _Argument(argument_field.name, annotation, types, argument_field.default, is_positional)


def _convert(argument: _Argument, text_or_texts: object, value: object) -> object:
    """Convert the value of one argument in a recipe to the argument's type.

    Scalars and lists are converted from their texts, as on the command line. A mapping is taken from `value`.

    Args:
        text_or_texts: the value with each scalar as text: usually a string or a list of strings (see [`_text_of`]), a
            mapping, or None for null.
        value: the same value, in the same structure, with numbers and booleans converted to their Python types.

    Raises:
        InputError, ValueError, argparse.ArgumentError: if the value does not match the type. The caller adds the
            argument's name to the message.
    """
    if argument.is_positional:
        return _convert_positional(text_or_texts)
    if text_or_texts is None:
        _check_takes_null(argument)
        return None
    if isinstance(text_or_texts, dict):
        _check_takes_mapping(argument, value)
        return value
    if isinstance(text_or_texts, list):
        return _convert_list(argument, text_or_texts)
    return _convert_text(argument, _text_of(text_or_texts))


def _convert_positional(texts: object) -> list[str]:
    """Return the texts of a positional argument. Raise InputError if they are not a list."""
    if not isinstance(texts, list):
        raise InputError("give a list")
    # The command line does not convert positional values either.
    return [_text_of(text) for text in texts]


def _check_takes_null(argument: _Argument) -> None:
    """Raise InputError if a value of the argument may not be null."""
    if NoneType not in argument.types:
        raise InputError("give a value, or leave the line out")


def _check_takes_mapping(argument: _Argument, mapping: object) -> None:
    """Raise InputError if a value of the argument may not be a mapping, or if the mapping has an ambiguous word."""
    if not argument.takes_mapping():
        raise InputError("one value is needed")
    _check_has_no_ambiguous_word(mapping)


def _convert_list(argument: _Argument, texts: list[object]) -> list[object]:
    """Convert the items of a list. Raise InputError if a value of the argument may not be a list."""
    if not argument.takes_list():
        raise InputError("one value is needed")
    return _convert_items(argument, texts)


def _convert_items(argument: _Argument, texts: list[object]) -> list[object]:
    """Convert a list in a recipe. Each of its items is converted as one value of the argument."""
    items: list[object] = []
    for text in texts:
        converted = _convert_text(argument, _text_of(text))
        # The command line parses each value of a list argument to a list of one item.
        if isinstance(converted, list):
            items.extend(converted)
        else:
            items.append(converted)
    return items


def _text_of(value: object) -> str:
    """Convert a scalar back to the text that the command line takes.

    Most scalars already are texts. In JSON, or in YAML with an explicit tag, a scalar may be a boolean or a number.

    Raises InputError if the value is not a scalar.
    """
    is_scalar = value is not None and not isinstance(value, (dict, list))
    if not is_scalar:
        raise InputError("an item of a list must be one value")
    if isinstance(value, bool):
        # JSON writes booleans as the command line does: true and false.
        return json.dumps(value)
    return str(value)


def _convert_text(argument: _Argument, text: str) -> object:
    """Convert a scalar's text to an argument's type in the same way as the command line does."""
    option_value = _spell_for_command_line(argument, text)
    takes_string_or_boolean = bool in argument.types and str in argument.types
    try:
        return _parse_option(argument, option_value)
    except argparse.ArgumentError:
        # Of an argument of the type `bool | str`, the command line accepts only booleans, but Python also strings.
        # `text` is such a string: if it had been replaced above, it would be a boolean.
        if takes_string_or_boolean:
            return text
        raise


def _spell_for_command_line(argument: _Argument, text: str) -> str:
    """Replace YAML's "on" and "off" by "true" and "false", and its ".inf" and ".nan" by "inf" and "nan".

    Booleans and numbers are replaced only if the argument may have such a value.
    """
    option_value = text
    if bool in argument.types:
        option_value = _TRUTH_VALUES.get(option_value.lower(), option_value)
    if float in argument.types:
        option_value = _python_float(option_value)
    return option_value


def _parse_option(argument: _Argument, option_value: str) -> object:
    """Parse an argument's value with the parser that the command line uses.

    The parser knows only this argument, so that a text such as "--help" cannot be parsed as a different one.
    """
    # The default is never used, because a value is passed below.
    declaration = (argument.name, argument.annotation, field(default=None))
    only_argument: Any = make_dataclass("OnlyArgument", [declaration])
    parser = HfArgumentParser([only_argument], exit_on_error=False, allow_abbrev=False)
    # With "=", a value that begins with "-" is not mistaken for the name of an argument.
    namespace, _ = parser.parse_known_args([f"--{argument.name}={option_value}"])
    return getattr(namespace, argument.name)


def _python_float(text: str) -> str:
    """Rewrite a YAML number so that Python's float() can read it, for example "-.inf" as "-inf"."""
    # The groups leave out the dot: "-.inf" has the sign "-" and the name "inf".
    special_number = _INFINITY_OR_NAN.fullmatch(text)
    if special_number is None:
        return text
    return special_number["sign"] + special_number["name"]


def _check_has_no_ambiguous_word(value: object) -> None:
    """Raise InputError if a value is or contains an unquoted word such as `no`, which may be a string or a boolean."""
    if isinstance(value, _AmbiguousWord):
        raise InputError(
            f"{value} may be a word or a truth value; put the word in quotation marks, or write true or false"
        )
    if isinstance(value, dict):
        for member in value.values():
            _check_has_no_ambiguous_word(member)
    if isinstance(value, list):
        for item in value:
            _check_has_no_ambiguous_word(item)
