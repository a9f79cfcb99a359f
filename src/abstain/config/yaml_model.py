"""YAML configuration files (params.yaml, sources.yaml, studies), each parsed once into one frozen model.

An error about an unknown or misspelt key names the nearest valid one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.text import suggest_name


class FrozenModel(BaseModel):
    """Part of a configuration file: frozen, and without undeclared keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Model = TypeVar("Model", bound=FrozenModel)


def load_yaml_model(path: Path, model: type[Model], remedy: str) -> Model:
    """Read and check a file.

    Args:
        path: Path of the file.
        model: Model of its content.
        remedy: What to do if there is no such file, for the message.

    Returns:
        The content as a `model`.

    Raises:
        AbstainError: The file is missing or not valid YAML, or a key is invalid; the message names the first one.
    """
    return validate_yaml(read_yaml(path, remedy), path, model)


def load_yaml(text: str) -> Any:
    """Parse YAML by libyaml, a twentieth of the time, where PyYAML has it.

    Args:
        text: The text.

    Returns:
        The parsed content.

    Raises:
        yaml.YAMLError: It is not valid YAML.
    """
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 (both are safe)


def read_yaml(path: Path, remedy: str) -> Any:
    """Read and parse a file.

    Args:
        path: Path of the file.
        remedy: What to do if there is no such file, for the message.

    Returns:
        The parsed content.

    Raises:
        AbstainError: The file is missing, cannot be read or is not valid YAML.
    """
    try:
        return load_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise AbstainError(Code.NOT_READABLE, f"{path} is missing: {remedy}") from None
    except OSError as error:
        raise AbstainError(Code.NOT_READABLE, f"{path} cannot be read: {error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise AbstainError(Code.WRONG_FORMAT, f"{path} is not valid YAML: {' '.join(str(error).split())}") from None


def validate_yaml(content: Any, path: Path, model: type[Model]) -> Model:
    """Check parsed content.

    Args:
        content: The parsed content.
        path: Path of the file, for the message.
        model: Model of the content.

    Returns:
        The content as a `model`.

    Raises:
        AbstainError: A key is invalid; the message names the file and the first such key.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise AbstainError(Code.BAD_SETTING, f"{path}: {_describe_first_error(error, model)}") from None


def _describe_first_error(error: ValidationError, model: type[FrozenModel]) -> str:
    problems = error.errors()  # a misspelt key is also missing, but its name is more informative
    problem = next((p for p in problems if p["type"] == "extra_forbidden"), problems[0])
    location, context = problem["loc"], problem.get("ctx", {})
    tags = {index for index, part in enumerate(location) if part in _get_tags(_find_models(model, location[:index]))}
    key_path = ".".join(str(part) for index, part in enumerate(location) if index not in tags)
    if problem["type"] == "extra_forbidden":
        keys = [key for parent in _find_models(model, location[:-1]) for key in parent.model_fields]
        return f"unknown key '{key_path}': {suggest_name(str(location[-1]), keys)}"
    if problem["type"] in ("union_tag_invalid", "union_tag_not_found"):
        kind, valid_tags = context["discriminator"].strip("'"), _get_tags(_find_models(model, location))
        if "tag" not in context:
            return f"{key_path}: {kind} is missing: one of {', '.join(valid_tags)}"
        return f"{key_path}.{kind}: unknown {kind} '{context['tag']}': {suggest_name(context['tag'], valid_tags)}"
    message = str(context.get("error", problem["msg"]))
    return f"{key_path}: {message}" if key_path else message


def _find_models(annotation: Any, location: Sequence[str | int]) -> list[type[BaseModel]]:
    """Return the models that the keys, positions and tags of `location` lead to: several in a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if not location:
            return [annotation]
        key, rest = str(location[0]), location[1:]
        if key in annotation.model_fields:
            return _find_models(annotation.model_fields[key].annotation, rest)
        return _find_models(annotation, rest) if key in _get_tags([annotation]) else []
    remaining = location[1:] if get_origin(annotation) in (dict, list, tuple) else location
    return [model for part in get_args(annotation) for model in _find_models(part, remaining)]


def _get_tags(models: Iterable[type[BaseModel]]) -> list[str]:
    """Return the discriminators of the models of a union: the only value that one of their keys may have."""
    annotations = (field.annotation for model in models for field in model.model_fields.values())
    return [
        get_args(annotation)[0]
        for annotation in annotations
        if get_origin(annotation) is Literal and len(get_args(annotation)) == 1
    ]
