"""A candidate beside the live version: it decides about the same answers, afterwards, and nobody obeys it.

It reads what the base model computed for production's decision, in a thread of its own. Where its scorer needs more,
`full` lets the base model read for it while no request waits. What comes faster than it decides is dropped and counted.
Whatever goes wrong here is counted, too, and changes no answer.
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
from abstain.serving.api.batching import Batcher
from abstain.serving.api.metrics import Metrics
from abstain.serving.api.version_follower import LoadedVersion, VersionFollower
from abstain.serving.decision import Decision
from abstain.serving.gate import Gate, ScoredAnswer

MAX_QUEUED = 64
"""Answers that may wait for the shadow: each may hold a megabyte of states."""
IDLE_POLL_S = 0.02
"""How often the shadow asks whether the base model is idle."""
_log = logging.getLogger("abstain.serve")


@dataclass(frozen=True)
class _ShadowJob:
    """An answer that `live` has decided about. `row`: None where no texts are known."""

    live: LoadedVersion
    scored: ScoredAnswer
    row: Interaction | None


class ShadowGate:
    """Decides by the version of `follow`, and records it in `log` and `metrics`.

    `batcher`: where the base model may read for the shadow; None: it may not.
    """

    def __init__(self, follow: VersionFollower, log: DecisionLog, metrics: Metrics, batcher: Batcher | None) -> None:
        self.follower = follow
        self._log, self._metrics, self._batcher = log, metrics, batcher
        self._waiting: deque[_ShadowJob] = deque()
        self._thread = ThreadPoolExecutor(1, "shadow")
        self._runner: asyncio.Task[None] | None = None
        self._trouble: str | None = None

    def submit(self, live: LoadedVersion, scored: ScoredAnswer, row: Interaction | None) -> None:
        """Take an answer that production has just decided about, if there is a shadow and room; returns at once."""
        if self.follower.current is None or scored.decision.decision == "unavailable":
            return
        if len(self._waiting) >= MAX_QUEUED:
            self._count("dropped")
            return
        self._waiting.append(_ShadowJob(live, scored, row))
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run_all())

    async def close(self) -> None:
        """Leave what waits: nobody waits for it."""
        self._waiting.clear()
        if self._runner is not None:
            self._runner.cancel()
            with suppress(asyncio.CancelledError):
                await self._runner
        self._thread.shutdown()

    async def _run_all(self) -> None:
        while self._waiting:
            try:
                outcome = await self._run(self._waiting.popleft())
            except LogQueueFull:
                outcome = "dropped"
            except Exception as error:  # whatever it is: production goes on
                outcome = "failed"
                self._say(f"{type(error).__name__}: {error}")
            self._count(outcome)

    async def _run(self, job: _ShadowJob) -> str:
        """What became of it: `decided`, or `skipped` where the shadow needs what is not there."""
        shadow = self.follower.current
        if shadow is None:
            return "skipped"
        read = reuse_features(shadow.gate, job.live.gate, job.scored.answers)
        if read is not None:
            decide = asyncio.get_running_loop().run_in_executor(self._thread, _decide, shadow.gate, read)
            decision = await decide
        elif self._batcher is not None and job.row is not None:
            while not self._batcher.is_idle:
                await asyncio.sleep(IDLE_POLL_S)
            decision = await self._batcher.run(
                ("shadow", shadow), shadow.gate.predictor.decide_interactions, job.row, caller="the shadow"
            )
            self._metrics.shadow_tokens.inc(decision.forward_tokens)
        else:
            return "skipped"
        candidate = shadow.version_info.version
        made = _shadow_decision(job.scored.decision.interaction_id, candidate, decision, shadow.gate)
        await asyncio.wrap_future(self._log.record_shadow_decision(made))
        return "decided"

    def _count(self, outcome: str) -> None:
        self._metrics.shadow.labels(outcome).inc()

    def _say(self, trouble: str) -> None:
        if trouble != self._trouble:
            _log.warning("the shadow has failed, and production has not: %s", trouble)
        self._trouble = trouble


def reuse_features(shadow: Gate, live: Gate, answers: FeatureBatch | None) -> FeatureBatch | None:
    """`answers` as the scorer of `shadow` reads them, where `live` has read all that it needs; else None."""
    own, other = shadow.predictor, live.predictor
    same_prompts = all(
        getattr(own.source.params, name) == getattr(other.source.params, name)
        for name in ("model", "layout", "too_long")
    )
    readings = own.scorer.requires
    if answers is None or not same_prompts or not set(readings) <= set(answers.features):
        return None
    return FeatureBatch(answers.interactions, {reading: answers.features[reading] for reading in readings})


def _decide(gate: Gate, answers: FeatureBatch) -> Decision:
    (decision,) = gate.predictor.score_answers(answers, [None], [0.0])
    return decision


def _shadow_decision(key: str, candidate: str, decision: Decision, gate: Gate) -> ShadowDecision:
    return ShadowDecision(
        interaction_id=key,
        candidate=candidate,
        decided_at=datetime.now(UTC),
        would_show=decision.show,
        confidence=decision.confidence,
        probability=decision.probability,
        threshold=gate.predictor.threshold,
    )
