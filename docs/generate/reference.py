"""Parts of the reference that are generated from the code as Markdown: parameters, settings and commands."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel, SecretStr, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings
from typer.main import get_command

from abstain.config.params import Params
from abstain.config.serve_settings import ServeSettings
from abstain.config.settings import Settings
from abstain.core.markdown import MarkdownText, document, heading, table
from abstain_cli.app import app

NAMES: Mapping[Any, str] = {
    datetime: "time with a zone",
    int: "integer",
    float: "number",
    str: "text",
    bool: "true or false",
    Path: "path",
    SecretStr: "secret text",
}
BOUNDS = {Ge: ("ge", "at least"), Gt: ("gt", "above"), Le: ("le", "at most"), Lt: ("lt", "below")}
SECTION = re.compile(r"^(\w+):(?:\s+#\s*(.*))?$")
KEY = re.compile(r"^  (\w+):(.*)$")
COMMENT = re.compile(r"(?:^|\s)#\s+(.*)$")
PAGE = re.compile(r"docs/([\w/]+\.md)")
SPECIAL = re.compile(r"[\\*\[\]<|]")
"""What means something to Python-Markdown, which has fewer escapes than the CommonMark of `abstain.core.markdown`."""


def parameters(text: str) -> str:
    """Return every section and key of `params.yaml`, whose `text` this is, with type, bounds and comment."""
    values, comments = yaml.safe_load(text), parse_comments(text)
    blocks = []
    for section, field in Params.model_fields.items():
        model = field.annotation
        assert isinstance(model, type) and issubclass(model, BaseModel)
        rows = [
            (
                code(key),
                code(_as_yaml(values[section][key])),
                format_type(key_field),
                link_pages(comments[section].get(key, "")),
            )
            for key, key_field in model.model_fields.items()
        ]
        intro = [comments[section].get("", ""), model.__dict__.get("__doc__") or ""]
        blocks += [heading(2, section), *(link_pages(_sentence(line)) for line in intro if line)]
        blocks.append(table(("key", "default", "type", "meaning"), rows, text_columns=("default", "type", "meaning")))
    return document(blocks)


def settings() -> str:
    """Return the environment variables of every command, with types, defaults and descriptions."""
    return _variables(Settings)


def serve_settings() -> str:
    """Return the environment variables of `abstain serve`."""
    return _variables(ServeSettings)


def _variables(settings_type: type[BaseSettings]) -> str:
    rows = []
    for name, field in settings_type.model_fields.items():
        variable = str(field.validation_alias or f"{settings_type.model_config['env_prefix']}{name.upper()}")
        default = "none" if field.default is None else code(_format_default(field.default))
        rows.append((code(variable), format_type(field), default, link_pages(field.description or "")))
    return table(("variable", "type", "default", "meaning"), rows, text_columns=("type", "default", "meaning"))


def _format_default(default: Any) -> str:
    return json.dumps(default.model_dump()) if isinstance(default, BaseModel) else str(default)


def commands() -> str:
    """Return every command of `abstain` with its arguments and options."""
    named_commands = _commands(get_command(app), "abstain")
    return document(block for name, command in named_commands for block in _section(name, command))


def parse_comments(text: str) -> dict[str, dict[str, str]]:
    """Return the comment of each key by section of a `params.yaml`; that of a section has the empty key."""
    comments: dict[str, dict[str, str]] = {}
    section = ""
    for line in text.splitlines():
        if section_match := SECTION.match(line):
            section = section_match[1]
            comments[section] = {"": section_match[2] or ""}
        elif (key := KEY.match(line)) and (comment := COMMENT.search(key[2])):
            comments[section][key[1]] = comment[1]
    return comments


def format_type(field: FieldInfo) -> MarkdownText:
    """Return the type of a parameter or setting in words, with its bounds or its values."""
    return _type(field.annotation, field.metadata)


def code(text: str) -> MarkdownText:
    """Return `text` as code in a cell of a table."""
    return MarkdownText(f"`{text.replace('|', chr(92) + '|')}`" if text else "")


def link_pages(text: str) -> MarkdownText:
    """Return `text` in Markdown, for a page of a sub-folder of `docs`: the path of another page becomes a link."""
    parts = re.split(r"(`[^`]+`)", " ".join(text.split()))
    words = (part if part.startswith("`") else SPECIAL.sub(r"\\\g<0>", part) for part in parts)
    return MarkdownText(PAGE.sub(lambda page: f"[{page[1]}](../{page[1]})", "".join(words)))


def _type(annotation: Any, metadata: Sequence[Any] = ()) -> MarkdownText:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        keys = ", ".join(code(f"__{name.upper()}") for name in annotation.model_fields)
        return MarkdownText(f"text under each of {keys}")
    if annotation in NAMES:
        return MarkdownText("".join([NAMES[annotation], *_bounds(metadata)]))
    if origin is Annotated:
        return _type(arguments[0], [*arguments[1:], *metadata])
    if origin is Literal:
        return MarkdownText(", ".join(code(str(value)) for value in arguments))
    if origin is tuple:
        return MarkdownText("".join(["list of: ", _type(arguments[0]), *_bounds(metadata)]))
    if origin in (Union, UnionType):
        kinds = [_type(kind, metadata) for kind in arguments if kind is not NoneType]
        return MarkdownText(", or ".join([*kinds, *([code("null")] if NoneType in arguments else [])]))
    raise TypeError(f"no words for the type {annotation}: add it to NAMES")


def _bounds(metadata: Iterable[Any]) -> list[str]:
    limits = [(*BOUNDS[type(limit)], limit) for limit in metadata if type(limit) in BOUNDS]
    bounds = [f", {words} {getattr(limit, attribute)}" for attribute, words, limit in limits]
    return [*bounds, *(", not empty" for limit in metadata if isinstance(limit, MinLen))]


def _as_yaml(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n").removesuffix("\n...")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield name, command
        return
    for word in sorted(command.commands):
        yield from _commands(command.commands[word], f"{name} {word}")


def _section(name: str, command: Any) -> list[str]:
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    rows = [(code(_metavar(argument)), "", link_pages(argument.help or "")) for argument in arguments]
    rows += [(code(_flags(option)), _default(option), _meaning(option)) for option in options]
    usage = [name, *(["[OPTIONS]"] if options else []), *map(_metavar, arguments)]
    blocks = [heading(2, name), link_pages(command.help or ""), f"```\n{' '.join(usage)}\n```"]
    if rows:
        columns = ("argument or option", "default", "meaning")
        blocks.append(table(columns, rows, text_columns=columns))
    return blocks


def _metavar(argument: Any) -> str:
    name = (argument.metavar or argument.name.upper()) + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def _flags(option: Any) -> str:
    return " ".join(filter(None, [", ".join([*option.opts, *option.secondary_opts]), option.metavar]))


def _default(option: Any) -> MarkdownText:
    if option.required:
        return MarkdownText("required")
    return code("" if option.default is None or option.default is False else str(option.default))


def _meaning(option: Any) -> MarkdownText:
    kind = option.type_descriptor.annotation
    choices = " or ".join(f"`{choice}`" for choice in get_args(kind)) if get_origin(kind) is Literal else ""
    return link_pages(": ".join(filter(None, [option.help, choices])))


def format_schema(content: type) -> str:
    """Return the JSON schema of the type of a file's content as a fenced block."""
    schema = TypeAdapter(content).json_schema(mode="serialization")
    return f"```json\n{json.dumps(schema, indent=1)}\n```\n"
