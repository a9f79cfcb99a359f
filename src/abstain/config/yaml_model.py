"""YAML configuration files (params.yaml, sources.yaml, studies), each parsed once into one frozen model.

An unknown or misspelt key is an error that names the nearest valid one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.text import did_you_mean


class FrozenModel(BaseModel):
    """A part of such a file: frozen, and without keys that it does not declare."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Declared = TypeVar("Declared", bound=FrozenModel)


def load_yaml_model(path: Path, model: type[Declared], remedy: str) -> Declared:
    """`path` as a `model`. Raises `AbstainError` naming the first invalid key, or, where there is no such file, the
    `remedy`."""
    return validate_yaml(read_yaml(path, remedy), path, model)


def read_yaml(path: Path, remedy: str) -> Any:
    """The parsed file. Raises `AbstainError` where it is not valid YAML and, with the `remedy`, where it is missing."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise AbstainError(Code.NOT_READABLE, f"{path} is missing: {remedy}") from None
    except OSError as error:
        raise AbstainError(Code.NOT_READABLE, f"{path} cannot be read: {error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise AbstainError(Code.WRONG_FORMAT, f"{path} is not valid YAML: {' '.join(str(error).split())}") from None


def validate_yaml(content: Any, path: Path, model: type[Declared]) -> Declared:
    """`content` of `path` as a `model`.

    Raises `AbstainError` naming the file and its first invalid key.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise AbstainError(Code.BAD_SETTING, f"{path}: {_first_problem(error, model)}") from None


def _first_problem(error: ValidationError, model: type[FrozenModel]) -> str:
    problems = error.errors()  # a misspelt key is also missing, but its name is more informative
    problem = next((p for p in problems if p["type"] == "extra_forbidden"), problems[0])
    location, context = problem["loc"], problem.get("ctx", {})
    tags = {at for at, part in enumerate(location) if part in _tags(_models(model, location[:at]))}
    where = ".".join(str(part) for at, part in enumerate(location) if at not in tags)
    if problem["type"] == "extra_forbidden":
        keys = [key for parent in _models(model, location[:-1]) for key in parent.model_fields]
        return f"unknown key '{where}': {did_you_mean(str(location[-1]), keys)}"
    if problem["type"] in ("union_tag_invalid", "union_tag_not_found"):
        kind, there = context["discriminator"].strip("'"), _tags(_models(model, location))
        if "tag" not in context:
            return f"{where}: {kind} is missing: one of {', '.join(there)}"
        return f"{where}.{kind}: unknown {kind} '{context['tag']}': {did_you_mean(context['tag'], there)}"
    message = str(context.get("error", problem["msg"]))
    return f"{where}: {message}" if where else message


def _models(annotation: Any, location: Sequence[str | int]) -> list[type[BaseModel]]:
    """The models that keys, positions and tags lead to, from an annotation on: several in a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if not location:
            return [annotation]
        key, rest = str(location[0]), location[1:]
        if key in annotation.model_fields:
            return _models(annotation.model_fields[key].annotation, rest)
        return _models(annotation, rest) if key in _tags([annotation]) else []
    inside = location[1:] if get_origin(annotation) in (dict, list, tuple) else location
    return [found for part in get_args(annotation) for found in _models(part, inside)]


def _tags(models: Iterable[type[BaseModel]]) -> list[str]:
    """The discriminator of the models of a union: the one value that a key of theirs may have."""
    annotations = (field.annotation for model in models for field in model.model_fields.values())
    return [get_args(one)[0] for one in annotations if get_origin(one) is Literal and len(get_args(one)) == 1]
