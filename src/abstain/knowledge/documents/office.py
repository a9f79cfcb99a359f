"""What Word documents and spreadsheets have in common: a zip archive with XML, of which one part has the properties."""

from __future__ import annotations

import io
from typing import Any
from zipfile import BadZipFile, ZipFile

from lxml import etree

from abstain.core.codes import Code
from abstain.core.errors import AbstainError

_PROPERTIES = "docProps/core.xml"
_FIELD_BY_TAG = {
    "{http://purl.org/dc/elements/1.1/}title": "title",
    "{http://purl.org/dc/terms/}modified": "updated_at",
}


def read_properties(content: bytes) -> dict[str, Any]:
    """Read the title and the time of the last change from the properties of a file.

    Args:
        content: The bytes of the file.

    Returns:
        `title` and `updated_at`, without those that the file does not have.

    Raises:
        AbstainError: The file is damaged.
    """
    try:
        with ZipFile(io.BytesIO(content)) as archive:
            if _PROPERTIES not in archive.namelist():
                return {}
            parser = etree.XMLParser(resolve_entities=False, no_network=True)
            root = etree.fromstring(archive.read(_PROPERTIES), parser)
    except (BadZipFile, etree.XMLSyntaxError, RuntimeError) as error:
        raise AbstainError(Code.WRONG_FORMAT, f"cannot be read: {error}: save it again") from None
    texts = {_FIELD_BY_TAG[node.tag]: (node.text or "").strip() for node in root if node.tag in _FIELD_BY_TAG}
    return {name: text for name, text in texts.items() if text}
