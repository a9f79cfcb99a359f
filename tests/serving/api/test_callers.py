from __future__ import annotations

import pytest

from abstain.serving.service.callers import MAX_CALLERS, Quota, QuotaExceeded, get_caller_name
from abstain.serving.service.keys import LOOPBACK_KEY, ApiKey


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_caller_is_its_key_or_else_its_address() -> None:
    scope = {"type": "http", "client": ("10.0.0.1", 5000)}
    assert get_caller_name(scope, ApiKey("ann", frozenset(), "5e")) == "key ann"
    assert get_caller_name(scope, LOOPBACK_KEY) == get_caller_name(scope, None) == "address 10.0.0.1"
    assert get_caller_name({"type": "http", "client": None}, None) == "address unknown"


def test_a_quota_is_refilled_evenly_and_is_one_callers_alone() -> None:
    clock = Clock()
    quota = Quota(60, "rows", clock)
    quota.take("a", 60)
    with pytest.raises(QuotaExceeded, match="a has sent 60 rows within a minute") as refused:
        quota.take("a", 2)
    assert refused.value.retry_after == 2
    quota.take("b")
    clock.now = 2.0
    quota.take("a", 2)
    with pytest.raises(QuotaExceeded):
        quota.take("a")


def test_a_list_longer_than_the_quota_is_taken_once_in_its_time() -> None:
    clock = Clock()
    quota = Quota(6, "rows", clock)
    quota.take("a", 12)
    clock.now = 119.0
    with pytest.raises(QuotaExceeded) as refused:
        quota.take("a", 12)
    assert refused.value.retry_after == 1
    clock.now = 120.0
    quota.take("a", 12)


def test_callers_of_long_ago_are_forgotten() -> None:
    clock = Clock()
    quota = Quota(60, "rows", clock)
    for at in range(MAX_CALLERS):
        quota.take(str(at))
    clock.now = 1.0
    quota.take("new")
    assert len(quota._used) == 1
