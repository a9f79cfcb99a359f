"""Hooks of mkdocs: generated parts, equations, and a check that the site can be read offline.

A page of `docs/` has a line `<!-- generated: NAME -->` in the place of a part that is made at build time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.pages import Page
from reference import commands, format_schema, parameters, serve_settings, settings

from abstain.config.template import read_template
from abstain.data.labels.data_card import DataCard
from abstain.learning.evaluation.evaluation_result import EvaluationResult

GENERATED: dict[str, Callable[[], str]] = {
    "parameters": lambda: parameters(read_template("params.yaml")),
    "settings": settings,
    "serve_settings": serve_settings,
    "commands": commands,
    "evaluation_schema": lambda: format_schema(EvaluationResult),
    "data_card_schema": lambda: format_schema(DataCard),
}
MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)
REMOTE = re.compile(
    r"""<(?:script|img|iframe|source|embed)\b[^>]*\bsrc=["']?(?:https?:)?//"""
    r"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|icon|preload|preconnect|modulepreload))[^>]*\bhref=["']?(?:https?:)?//"""
    r"""|@import\s+["'](?:https?:)?//|\burl\(\s*["']?(?:https?:)?//"""
    r"""|class=["']?mermaid\b"""  # the theme fetches the renderer of such a diagram
)
"""A script, style, font or picture of another host."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Render fences named `math` as MathML, which browsers show without a script."""
    fences = config.mdx_configs.setdefault("pymdownx.superfences", {}).setdefault("custom_fences", [])
    fences.append({"name": "math", "class": "math", "format": _equation})
    return config


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Any) -> str:
    """Fill in the generated parts of a page."""
    return MARK.sub(lambda mark: GENERATED[mark[1]](), markdown)


def on_post_build(*, config: MkDocsConfig) -> None:
    """Raise `PluginError` if a built page would load a script, style, font or picture from another host."""
    if loads := remote_loads(Path(config.site_dir)):
        raise PluginError(f"the site is to be read offline: {'; '.join(loads)}")


def remote_loads(site: Path) -> list[str]:
    """Return each tag or rule of the HTML and CSS in `site` that loads something from another host, after its file."""
    files = sorted(file for file in site.rglob("*") if file.suffix in (".html", ".css"))
    return [
        f"{file.relative_to(site)}: {load[0]}" for file in files for load in REMOTE.finditer(file.read_text("utf-8"))
    ]


def _equation(source: str, language: str, css_class: str, options: Any, md: Any, **_: Any) -> str:
    return f'<div class="{css_class}">{convert(source.strip(), display="block")}</div>'
