import pytest

from abstain.core.bundle_format import BUNDLE_FORMAT, require_format
from abstain.core.errors import AbstainError


@pytest.mark.parametrize("metadata", [{}, {"format": ""}, {"format": f"{BUNDLE_FORMAT}0"}, {"format": "two"}])
def test_require_format_other_format_raises(metadata: dict[str, str]) -> None:
    with pytest.raises(AbstainError, match=rf"has format {metadata.get('format', 'none')}, "):
        require_format(metadata)


def test_require_format_current_format_passes() -> None:
    require_format({"format": BUNDLE_FORMAT})
