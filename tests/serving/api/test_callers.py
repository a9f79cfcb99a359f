from collections.abc import Callable

import pytest

from abstain.serving.service.callers import MAX_CALLERS, Quota, QuotaExceeded, get_caller_name
from abstain.serving.service.keys import LOOPBACK_KEY, ApiKey


def make_quota(per_minute: int) -> tuple[Quota, Callable[[float], None]]:
    """A quota, and what sets its clock."""
    now = [0.0]
    return Quota(per_minute, "rows", lambda: now[0]), lambda seconds: now.__setitem__(0, seconds)


def test_caller_name_is_of_its_key_or_address() -> None:
    scope = {"type": "http", "client": ("10.0.0.1", 5000)}
    assert get_caller_name(scope, ApiKey("ann", frozenset(), "5e")) == "key ann"
    assert get_caller_name(scope, LOOPBACK_KEY) == get_caller_name(scope, None) == "address 10.0.0.1"
    assert get_caller_name({"type": "http", "client": None}, None) == "address unknown"


def test_quota_is_refilled_evenly_for_each_caller() -> None:
    quota, set_clock = make_quota(60)
    quota.take("a", 60)
    with pytest.raises(QuotaExceeded, match="a has sent 60 rows") as rejected:
        quota.take("a", 2)
    assert rejected.value.retry_after == 2
    quota.take("b")
    set_clock(2.0)
    quota.take("a", 2)
    with pytest.raises(QuotaExceeded):
        quota.take("a")


def test_quota_takes_a_longer_list_once_in_its_time() -> None:
    quota, set_clock = make_quota(6)
    quota.take("a", 12)
    set_clock(119.0)
    with pytest.raises(QuotaExceeded) as rejected:
        quota.take("a", 12)
    assert rejected.value.retry_after == 1
    set_clock(120.0)
    quota.take("a", 12)


def test_quota_forgets_callers_of_long_ago() -> None:
    quota, set_clock = make_quota(60)
    for number in range(MAX_CALLERS):
        quota.take(str(number))
    set_clock(1.0)
    quota.take("new")
    assert len(quota._used) == 1
