"""Parse a Word document (.docx): mammoth makes HTML of it, which is converted like a page. Macros are not read."""

from __future__ import annotations

import io
from typing import Any

from bs4 import BeautifulSoup
from bs4.element import Tag

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.knowledge.documents.html import html_to_markdown
from abstain.knowledge.documents.office import read_properties

try:
    import mammoth
except ImportError:
    raise AbstainError(Code.NO_PACKAGE, "Word documents need mammoth: pip install 'abstain[documents]'") from None

_LISTS = {"Bullet": "ul", "Number": "ol"}
_STYLES = "\n".join(
    [
        "p[style-name='Title'] => h1.title:fresh",
        "p[style-name='Subtitle'] => p:fresh",
        *(
            f"p[style-name='List {name} {level}'] => {'ul|ol > li > ' * (level - 1)}{tag} > li:fresh"
            for name, tag in _LISTS.items()
            for level in (2, 3)
        ),
    ]
)
"""Word's own list styles of a deeper level are nested in the list above them."""


def parse_word(content: bytes) -> tuple[dict[str, Any], str]:
    """Parse a Word document.

    Args:
        content: The bytes of the file.

    Returns:
        Its title and the time of its last change, and its text as Markdown.

    Raises:
        AbstainError: The file is damaged.
    """
    fields = read_properties(content)
    try:
        result = mammoth.convert_to_html(io.BytesIO(content), style_map=_STYLES, convert_image=_drop_image)
    except (KeyError, ValueError) as error:  # of a part that is not there or is no XML
        raise AbstainError(Code.WRONG_FORMAT, f"cannot be read: {error}: save it again") from None
    soup = BeautifulSoup(result.value, "lxml")
    heading = soup.find("h1", class_="title")
    if isinstance(heading, Tag) and (title := " ".join(heading.get_text().split())):
        fields["title"] = title
    for table in soup.find_all("table"):
        _mark_header(table)
    return fields, html_to_markdown(str(soup))


@mammoth.images.img_element  # type: ignore[untyped-decorator]
def _drop_image(image: Any) -> dict[str, str]:
    """Return no source for an image; mammoth adds its alternative text."""
    return {"src": ""}


def _mark_header(table: Tag) -> None:
    """Make the first row of a table its header, unless Word knows of a header; layout tables have one row."""
    rows = table.find_all("tr")
    if table.find("th") is None and len(rows) > 1:
        for cell in rows[0].find_all("td", recursive=False):
            cell.name = "th"
