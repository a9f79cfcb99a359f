"""The familiarity of the live version's base model with an instruction."""

from __future__ import annotations

import asyncio

from abstain.llm.familiarity.familiarity import Familiarity, SelfFamiliarity
from abstain.serving.service.batching import Batcher
from abstain.serving.service.callers import get_current_caller
from abstain.serving.service.version_follower import LoadedVersion, VersionFollower
from abstain.serving.service.waiting import WaitForDisconnect, cancel_on_disconnect, run_with_timeout


class FamiliarityMeter:
    """Measures familiarity by the base model of the live version.

    Args:
        follower: Follows the production version.
        batcher: Runs the base model.
        timeout_s: Time limit in seconds.
    """

    def __init__(self, follower: VersionFollower, batcher: Batcher, timeout_s: float) -> None:
        self._follower, self._batcher, self._timeout_s = follower, batcher, timeout_s
        self._scorer: tuple[LoadedVersion, SelfFamiliarity] | None = None

    async def measure(
        self, instruction: str, wait_for_disconnect: WaitForDisconnect
    ) -> tuple[Familiarity, float | None]:
        """Measure how familiar the live version's base model is with an instruction.

        Args:
            instruction: The instruction.
            wait_for_disconnect: Ends when the caller has left.

        Returns:
            The familiarity, and the threshold h if it is already known.

        Raises:
            AbstainError: No version is live, the extra `familiarity` is not installed, there is no result in time, or
                the caller has left.
        """
        version = self._follower.require_current()
        if self._scorer is None or self._scorer[0] is not version:
            source = version.gate.predictor.source
            self._scorer = version, SelfFamiliarity(source.params.model, source.params.layout, source.settings)
        scorer = self._scorer[1]
        job = self._batcher.run(("familiarity", version), scorer.score, instruction, caller=get_current_caller())
        familiarity: Familiarity = await run_with_timeout(
            self._timeout_s, cancel_on_disconnect(job, wait_for_disconnect)
        )
        return familiarity, await asyncio.to_thread(scorer.get_cached_threshold)
