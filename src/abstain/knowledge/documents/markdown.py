"""Parse a Markdown file: metadata, and text in which raw HTML, quoted tables and extensions became plain Markdown."""

from __future__ import annotations

from typing import Any

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.knowledge.documents.front_matter import split_front_matter
from abstain.knowledge.documents.markdown_extensions import remove_extensions
from abstain.knowledge.documents.normalize_markdown import normalize_markdown
from abstain.knowledge.documents.sections import PAGE_MARKER


def parse_markdown(content: bytes) -> tuple[dict[str, Any], str]:
    """Parse a Markdown file.

    Args:
        content: The bytes of the file, UTF-8, or UTF-16 with its mark.

    Returns:
        The fields of its front matter, and its text.

    Raises:
        AbstainError: The file is not text, or its front matter cannot be read.
    """
    encoding = "utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        where = f"byte {error.start + 1} is 0x{content[error.start]:02x}"
        charset = encoding.removesuffix("-sig").upper()
        raise AbstainError(Code.INVALID_ROW, f"not valid {charset} ({where}): save it as UTF-8") from None
    fields, body = split_front_matter(text.replace("\r\n", "\n").replace("\r", "\n"))
    body = PAGE_MARKER.sub("", remove_extensions(body))  # only a format with pages may have its marks
    return fields, normalize_markdown(body)
