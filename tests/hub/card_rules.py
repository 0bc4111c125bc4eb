"""The Hub's rules for a model card's metadata, without `huggingface_hub` and without the package."""

import re
from collections.abc import Iterator
from typing import Any

import yaml


# A part of the Hub's list; it rejects licences that are not on the list.
LICENSES = {"apache-2.0", "mit", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0", "cc-by-nc-sa-4.0", "cc0-1.0", "gpl-3.0"}
LICENSES |= {"bsd-3-clause", "openrail", "unknown", "other"}
REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
# Two or three letters (ISO 639), in lower case.
LANGUAGE = re.compile("[a-z]{2,3}|multilingual|code")
STRINGS = ("library_name", "pipeline_tag")
LISTS_OF_STRINGS = ("tags", "metrics")


def card_errors(content: str) -> list[str]:
    """Errors in the metadata of a README.md, in sentences."""
    head = re.match(r"---\r?\n(.*?)\r?\n---\s", content, flags=re.DOTALL)
    if head is None:
        return []
    try:
        metadata = yaml.safe_load(head[1])
    except yaml.YAMLError as error:
        return [f"the metadata is no YAML: {error}"]
    if not isinstance(metadata, dict):
        return ["the metadata must be names and values"]
    return list(_errors(metadata))


def _errors(metadata: dict[str, Any]) -> Iterator[str]:
    for name in STRINGS:
        if name in metadata and not isinstance(metadata[name], str):
            yield f'"{name}" must be a string'
    for name in LISTS_OF_STRINGS:
        if name in metadata and not _is_list_of(str, metadata[name]):
            yield f'"{name}" must be an array of strings'
    for language in _as_list(metadata.get("language", [])):
        if not isinstance(language, str) or not LANGUAGE.fullmatch(language):
            yield f'"language" {language!r} must be an ISO 639 code of two or three lower-case letters'
    for license in _as_list(metadata.get("license", [])):
        if license not in LICENSES:
            yield f'"license" must be one of {sorted(LICENSES)}, not {license!r}'
    for name in ("base_model", "datasets"):
        for repository in _as_list(metadata.get(name, [])):
            if not isinstance(repository, str) or not REPO_ID.fullmatch(repository):
                yield f'"{name}" with value {repository!r} is not valid: use a name on the Hub'
    yield from _model_index_errors(metadata.get("model-index", []))


def _model_index_errors(index: Any) -> Iterator[str]:
    if not _is_list_of(dict, index):
        yield '"model-index" must be an array of objects'
        return
    for n, model in enumerate(index):
        where = f"model-index[{n}]"
        if not isinstance(model.get("name"), str):
            yield f'"{where}.name" must be a string'
        if not _is_list_of(dict, model.get("results")):
            yield f'"{where}.results" must be an array of objects'
            continue
        for m, result in enumerate(model["results"]):
            yield from _result_errors(f"{where}.results[{m}]", result)


def _result_errors(where: str, result: dict[str, Any]) -> Iterator[str]:
    for path in ("task.type", "dataset.type", "dataset.name"):
        group, name = path.split(".")
        if not isinstance(result.get(group, {}).get(name), str):
            yield f'"{where}.{path}" must be a string'
    dataset_type = result.get("dataset", {}).get("type")
    if isinstance(dataset_type, str) and not REPO_ID.fullmatch(dataset_type):
        yield f'"{where}.dataset.type" with value {dataset_type!r} is no identifier'
    if not _is_list_of(dict, result.get("metrics")) or not result["metrics"]:
        yield f'"{where}.metrics" must be an array of objects'
        return
    for n, metric in enumerate(result["metrics"]):
        if not isinstance(metric.get("type"), str):
            yield f'"{where}.metrics[{n}].type" must be a string'
        if not isinstance(metric.get("value"), (int, float, str, dict)):
            yield f'"{where}.metrics[{n}].value" is required'


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _is_list_of(item_type: type, value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, item_type) for item in value)
