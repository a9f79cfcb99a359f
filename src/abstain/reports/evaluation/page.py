"""The report as one HTML page that holds all it needs: style and plots are inlined, there is no script.

The template escapes whatever it is given. A content security policy tells the browser to fetch nothing.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from abstain.reports.evaluation.document import Cell, Report, Strong
from abstain.reports.evaluation.words import plain


def render_html(report: Report, images: Mapping[str, bytes]) -> str:
    """`report` as a page; `images`: plot's name -> SVG, as `plots.draw` draws it."""
    inlined = {name: f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}" for name, svg in images.items()}
    return _template().render(report=report, images=inlined)


def add_warning(page: str, warning: str) -> str:
    """A rendered page with a line above its verdict: what is known only when it is shown to somebody."""
    line = Markup('<main>\n<p class="card failed" role="note"><strong>{}</strong></p>').format(plain(warning))
    return page.replace("<main>", line, 1)


def _text(value: Any) -> Any:
    """Every text on one line, each number on the same one as its percent sign. What is markup was escaped before."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return re.sub(r"(?<=\d) (?=%)", "\u00a0", plain(value))


@lru_cache(maxsize=1)
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_text,
    )
    environment.filters |= {"kind": lambda block: type(block).__name__}
    environment.tests |= {
        "strong": lambda run: isinstance(run, Strong),
        "figure_with_more": lambda cell: isinstance(cell, Cell),
    }
    return environment.get_template("page.html")
