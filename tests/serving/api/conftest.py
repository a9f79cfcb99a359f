"""What other folders import from here."""

from tests.serving.conftest import *  # noqa: F403
