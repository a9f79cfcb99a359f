"""Metrics of the server for Prometheus. Labels have few values: none of them is a text or an id."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from abstain.data.decision_log.log import DecisionLog
from abstain.serving.service.version_follower import VersionFollower

BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
"""Seconds: from a probe on provided states to a long answer on a slow CPU."""


class Metrics:
    """The metrics of one server, in a registry of its own.

    Attributes:
        registry: The registry.
        decisions: Decisions, by decision, display, code, source and version.
        passed: What a gateway let pass without a decision, by source and reason.
        seconds: Time of a decision with its log, by source.
        tokens: Tokens that the base model read for decisions.
        feedback: Thumbs and reviews, by outcome.
        problems: Rejected requests, by status.
        queued_requests: Requests that wait for the base model.
        writable: Whether the decision log took the last rows.
        replaced: How often the file of the decision log was removed or replaced.
        live: The live version.
        version_swaps: Versions that took over.
        version_load_failures: Versions that failed to load.
        shadow: Answers offered to the shadow, by outcome.
        shadow_tokens: Tokens that the base model read for the shadow.
        shadowing: The candidate that runs as a shadow.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.decisions = Counter(
            "abstain_decisions_total",
            "Decisions, by what was decided, what is done with the answer, why, and who asked.",
            ("decision", "shown", "code", "source", "version"),
            registry=self.registry,
        )
        self.passed = Counter(
            "abstain_passed_undecided_total",
            "What a gateway let pass without a decision: requests, calls of tools, answers without any text.",
            ("source", "reason"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            "abstain_decision_seconds",
            "Time of a decision, its log included.",
            ("source",),
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.tokens = Counter(
            "abstain_forward_tokens_total", "Tokens that the base model read for decisions.", registry=self.registry
        )
        self.feedback = Counter(
            "abstain_feedback_total", "Thumbs and reviews.", ("kind", "outcome"), registry=self.registry
        )
        self.problems = Counter("abstain_problems_total", "Rejected requests.", ("status",), registry=self.registry)
        self.queued_requests = Gauge(
            "abstain_queued_requests", "Requests that wait for the base model.", registry=self.registry
        )
        self.writable = Gauge(
            "abstain_log_writable", "Whether the decision log took the last rows, 1 or 0.", registry=self.registry
        )
        self.replaced = Gauge(
            "abstain_log_replaced",
            "How often the file of the decision log was removed or replaced since the start.",
            registry=self.registry,
        )
        self.live = Gauge("abstain_live_info", "The version that decides.", ("version",), registry=self.registry)
        self.version_swaps = Gauge(
            "abstain_version_swaps", "Versions that took over since the start.", registry=self.registry
        )
        self.version_load_failures = Gauge(
            "abstain_version_load_failures", "Versions that failed to load.", registry=self.registry
        )
        self.shadow = Counter(
            "abstain_shadow_total",
            "Answers offered to the shadow: decided, skipped for what it needs besides, dropped, failed.",
            ("outcome",),
            registry=self.registry,
        )
        self.shadow_tokens = Counter(
            "abstain_shadow_forward_tokens_total",
            "Tokens that the base model read for the shadow.",
            registry=self.registry,
        )
        self.shadowing = Gauge(
            "abstain_shadow_info",
            "The candidate that runs as a shadow.",
            ("candidate",),
            registry=self.registry,
        )

    def update_gauges(
        self, n_queued: int, log: DecisionLog, follower: VersionFollower, shadow_follower: VersionFollower | None
    ) -> None:
        """Update the gauges, which are read instead of counted.

        Args:
            n_queued: Number of requests that wait for the base model.
            log: The decision log.
            follower: Follows the production version.
            shadow_follower: Follows the shadowed candidate; None without a shadow.
        """
        self.queued_requests.set(n_queued)
        self.writable.set(log.last_error is None)
        self.replaced.set(log.database.n_replaced)
        self.version_swaps.set(follower.n_swaps)
        self.version_load_failures.set(follower.n_failed_loads)
        for gauge, source in ((self.live, follower), (self.shadowing, shadow_follower)):
            gauge.clear()
            if source is not None and source.current:
                gauge.labels(source.current.version_info.version).set(1)

    def render(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self.registry)
