"""A shadow: a candidate that decides about the same answers as the live version, afterwards and without any effect.

It uses the features that the base model computed for production's decision, in a thread of its own. If its scorer needs
more, `full` lets the base model read for it while no request waits. Answers that come faster than it decides are
dropped and counted. Errors here are counted, too, and change no answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from abstain.core.contracts import Interaction
from abstain.data.decision_log.decisions import ShadowDecision
from abstain.data.decision_log.log import DecisionLog, LogQueueFull
from abstain.llm.signals.base import FeatureBatch
from abstain.serving.decision import Decision
from abstain.serving.gate import Gate, ScoredAnswer
from abstain.serving.service.batching import Batcher
from abstain.serving.service.metrics import Metrics
from abstain.serving.service.version_follower import LoadedVersion, VersionFollower

MAX_QUEUED = 64
"""Maximum number of answers in the queue of the shadow: each may hold a megabyte of states."""
IDLE_POLL_INTERVAL_S = 0.02
"""How often the shadow asks whether the base model is idle."""
_log = logging.getLogger("abstain.serve")


@dataclass(frozen=True)
class _ShadowJob:
    """An answer that `version` has decided about; `interaction` is None if its texts are unknown."""

    version: LoadedVersion
    scored: ScoredAnswer
    interaction: Interaction | None


class ShadowGate:
    """Decides by the version of a follower, and records it in the log and in metrics.

    Args:
        follower: Follows the shadowed candidate.
        log: The decision log.
        metrics: Metrics of the server.
        batcher: Runs the base model for the shadow; None if the base model may not read for it.
    """

    def __init__(self, follower: VersionFollower, log: DecisionLog, metrics: Metrics, batcher: Batcher | None) -> None:
        self.follower = follower
        self._log, self._metrics, self._batcher = log, metrics, batcher
        self._queue: deque[_ShadowJob] = deque()
        self._thread = ThreadPoolExecutor(1, "shadow")
        self._runner: asyncio.Task[None] | None = None
        self._last_error: str | None = None

    def submit(self, version: LoadedVersion, scored: ScoredAnswer, interaction: Interaction | None) -> None:
        """Queue an answer that production has just decided about, if there is a shadow and room; return at once.

        Args:
            version: Version that decided.
            scored: Its decision and the answer's features.
            interaction: Texts of the answer; None if they are unknown.
        """
        if self.follower.current is None or scored.decision.decision == "unavailable":
            return
        if len(self._queue) >= MAX_QUEUED:
            self._count("dropped")
            return
        self._queue.append(_ShadowJob(version, scored, interaction))
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run_all())

    async def close(self) -> None:
        """Stop without deciding about the queued answers."""
        self._queue.clear()
        if self._runner is not None:
            self._runner.cancel()
            with suppress(asyncio.CancelledError):
                await self._runner
        self._thread.shutdown()

    async def _run_all(self) -> None:
        while self._queue:
            try:
                outcome = await self._run(self._queue.popleft())
            except LogQueueFull:
                outcome = "dropped"
            except Exception as error:  # whatever it is: production goes on
                outcome = "failed"
                self._log_failure(f"{type(error).__name__}: {error}")
            self._count(outcome)

    async def _run(self, job: _ShadowJob) -> str:
        """Decide about one answer; return "decided", or "skipped" if the shadow needs features that are missing."""
        shadow = self.follower.current
        if shadow is None:
            return "skipped"
        batch = reuse_features(shadow.gate, job.version.gate, job.scored.features)
        if batch is not None:
            decide = asyncio.get_running_loop().run_in_executor(self._thread, _decide, shadow.gate, batch)
            decision = await decide
        elif self._batcher is not None and job.interaction is not None:
            while not self._batcher.is_idle:
                await asyncio.sleep(IDLE_POLL_INTERVAL_S)
            decision = await self._batcher.run(
                ("shadow", shadow), shadow.gate.predictor.decide_interactions, job.interaction, caller="the shadow"
            )
            self._metrics.shadow_tokens.inc(decision.forward_tokens)
        else:
            return "skipped"
        candidate = shadow.version_info.version
        shadow_decision = _make_shadow_decision(job.scored.decision.interaction_id, candidate, decision, shadow.gate)
        await asyncio.wrap_future(self._log.record_shadow_decision(shadow_decision))
        return "decided"

    def _count(self, outcome: str) -> None:
        self._metrics.shadow.labels(outcome).inc()

    def _log_failure(self, error: str) -> None:
        if error != self._last_error:
            _log.warning("the shadow has failed, and production has not: %s", error)
        self._last_error = error


def reuse_features(shadow: Gate, live: Gate, batch: FeatureBatch | None) -> FeatureBatch | None:
    """Select the features that the shadow's scorer needs from those of the live version.

    Args:
        shadow: Gate of the candidate.
        live: Gate of the live version.
        batch: The answer with the features that `live` has used.

    Returns:
        The answer with the candidate's features; None if some are missing, or its scorer runs a model to score.
    """
    shadow_predictor, live_predictor = shadow.predictor, live.predictor
    has_same_prompts = all(
        getattr(shadow_predictor.source.params, name) == getattr(live_predictor.source.params, name)
        for name in ("model", "layout", "too_long")
    )
    requests = shadow_predictor.scorer.requires
    if (
        batch is None
        or shadow_predictor.scorer.running
        or not has_same_prompts
        or not set(requests) <= set(batch.features)
    ):
        return None
    return FeatureBatch(batch.interactions, {request: batch.features[request] for request in requests})


def _decide(gate: Gate, batch: FeatureBatch) -> Decision:
    (decision,) = gate.predictor.score_answers(batch, [None], [0.0])
    return decision


def _make_shadow_decision(interaction_id: str, candidate: str, decision: Decision, gate: Gate) -> ShadowDecision:
    return ShadowDecision(
        interaction_id=interaction_id,
        candidate=candidate,
        decided_at=datetime.now(UTC),
        would_show=decision.show,
        confidence=decision.confidence,
        probability=decision.probability,
        threshold=gate.predictor.threshold,
    )
