from collections.abc import Iterator

import pytest

from abstain.learning.estimators.regressors import kinds


@pytest.fixture(scope="package", autouse=True)
def _few_rounds() -> Iterator[None]:
    """Boosting ends after 60 rounds, not 300: what is planted is learnt by then, and a fit costs a fifth."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kinds, "MAX_ROUNDS", 60)
        yield
