"""The 1-9 judgement of an explanation (Luo et al., figure 4) by an OpenAI-style endpoint.

Notes:

* A redirect is an error and is not followed: it would send the key, and the explanation, to any host that it names.
* A reply has a limit of time and of size. Only the endpoint's host is ever shown.
* A reply without a number from 1 to 9 gives no score.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.llm.features.feature_store import OnProgress
from studies.self_familiarity.concept7 import ConceptInstruction
from studies.self_familiarity.declared import JudgeService

PROMPT = """\
Using the background information provided, assess the participant's understanding of the target concept from their \
explanation. Please provide a rating between 1 and 9, with 9 being the best score (9 = Excellent, 5 = Average, \
1 = Poor).
Concept:
{concept}
Background:
{background}
Participant's Explanation:
{explanation}
Scoring Guide:
Award a score of "7-9 (Excellent)" if the participant's explanation of the concept is correct, with the inclusion of \
essential details demonstrating a comprehensive understanding of the concept. Minor inaccuracies can be ignored.
Award a score of "4-6 (Average)" if the participant's explanation of the concept is partially correct but lacks \
essential details.
Award a score of "1-3 (Poor)" if the participant's explanation of the concept is incorrect or includes obvious errors.
The term "essential details" refers to those details that only someone knowledgeable in this concept would suggest or \
that capture the core idea of the concept. These details cannot be deduced from a simple literal understanding.
Please note that the length of the explanation is not a determinant of the score. A concise yet accurate explanation \
with essential details is worthy of a high score.
Your Score (please provide a number between 1 and 9):"""
"""The paper's figure 4."""
TIMEOUT_S = 60.0
MAX_BYTES = 2**20
MAX_TOKENS = 16
SCORE = re.compile(r"(?<![\d.])([1-9])(?:\.0+)?(?![\d-]|\.\d)")


class _Message(BaseModel):
    model_config = ConfigDict(extra="ignore")

    content: str


class _Choice(BaseModel):
    model_config = ConfigDict(extra="ignore")

    message: _Message


class _Completion(BaseModel):
    model_config = ConfigDict(extra="ignore")

    choices: list[_Choice] = Field(min_length=1)


@dataclass(frozen=True)
class ExplanationJudge:
    """A judge behind an OpenAI-style endpoint."""

    service: JudgeService

    def rate(
        self, concepts: Sequence[ConceptInstruction], explanations: Sequence[str], progress: OnProgress
    ) -> list[float | None]:
        """Return the score of each explanation, (concepts,), 1 to 9; None for a reply without one.

        Raises:
            AbstainError: the key is missing, or the judge does not answer.
        """
        scores: list[float | None] = []
        with httpx.Client(headers=self._make_headers(), timeout=TIMEOUT_S, follow_redirects=False) as client:
            for instruction, explanation in zip(concepts, explanations, strict=True):
                prompt = PROMPT.format(
                    concept=instruction.concepts[0], background=instruction.background, explanation=explanation
                )
                scores.append(parse_score(self._ask(client, prompt)))
                progress(len(scores), len(concepts))
        return scores

    def _make_headers(self) -> dict[str, str]:
        name = self.service.key_env
        if name is None:
            return {}
        if not os.environ.get(name):
            raise AbstainError(
                Code.BAD_SETTING, f"environment variable {name} is not set: it is the key of the judge (judge.key_env)"
            )
        return {"Authorization": f"Bearer {os.environ[name]}"}

    def _ask(self, client: httpx.Client, prompt: str) -> str:
        request = {
            "model": self.service.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": MAX_TOKENS,
        }
        address = f"{self.service.url.rstrip('/')}/chat/completions"
        try:
            with client.stream("POST", address, json=request) as response:
                if not response.is_success:
                    redirect = ", a redirect" if response.is_redirect else ""
                    raise self._make_error(f"it answers {response.status_code}{redirect}")
                content = self._read(response)
            return _Completion.model_validate_json(content).choices[0].message.content
        except ValidationError:
            raise self._make_error("its reply is no chat completion") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._make_error(f"it is not reached ({type(error).__name__})") from None

    def _read(self, response: httpx.Response) -> bytes:
        content, end = b"", time.monotonic() + TIMEOUT_S
        for block in response.iter_bytes():
            content += block
            if len(content) > MAX_BYTES:
                raise self._make_error(f"its reply is longer than {MAX_BYTES:,} bytes")
            if time.monotonic() > end:
                raise self._make_error(f"its reply takes longer than {TIMEOUT_S:g} seconds")
        return content

    def _make_error(self, reason: str) -> AbstainError:
        host = urlsplit(self.service.url).netloc
        return AbstainError(
            Code.NO_SERVICE,
            f"the judge at {host} gave no score: {reason}: start it, or correct `judge` in the study's file",
        )


def parse_score(reply: str) -> float | None:
    """Return the first number from 1 to 9 in `reply`; None if there is none.

    Examples:
        >>> parse_score("Score: 7"), parse_score("I would say 10."), parse_score("8.0")
        (7.0, None, 8.0)
    """
    match = SCORE.search(reply)
    return float(match[1]) if match else None


def describe_judge(service: JudgeService) -> dict[str, Any]:
    """Return what its scores depend on, as JSON, without the key."""
    return {"url": service.url, "model": service.model, "prompt": PROMPT, "tokens": MAX_TOKENS}
