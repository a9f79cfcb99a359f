"""Configuration of the study of Self-Familiarity: data, model, sizes, judge, and the paper's figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from abstain.config.params import Count
from abstain.config.yaml_model import FrozenModel
from abstain.core.codes import Code
from abstain.core.errors import AbstainError

ConceptSource = Literal["extracted", "data"]
SizeName = Literal["concepts", "questions", "answers"]
SizePair = tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]]


def check_url(url: str) -> str:
    """Return `url`; the error does not quote it, because it may hold a secret.

    Raises:
        ValueError: it is no http(s) URL with a host, or it has a user, a password, a query or a fragment.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or "?" in url or "#" in url:
        raise ValueError("not an http(s) URL of a host, without user, password and query")
    return url


class ConceptFiles(FrozenModel):
    """File names in the folder of Concept-7, JSON Lines."""

    concepts: str
    questions: str
    common: str


class FamiliarityLengths(FrozenModel):
    """l_F, T_B and l_B of the paper."""

    explanation_tokens: Count
    beams: Count
    guess_tokens: Count


class BaselineLengths(FrozenModel):
    """Tokens of a greedy reply, number of samples, and tokens of each."""

    reply_tokens: Count
    samples: Annotated[int, Field(ge=2)]
    sample_tokens: Count


class JudgeService(FrozenModel):
    """An OpenAI-style endpoint, and the environment variable of its key."""

    url: Annotated[str, AfterValidator(check_url)]
    model: str
    key_env: str | None = None


class FamiliarityDeclaration(FrozenModel):
    """The file `self_familiarity.yaml`. `worksheet` is the path of a CSV file in which people write scores."""

    kind: Literal["self_familiarity"]
    title: str
    paper: str
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    files: ConceptFiles
    model: str
    layout: str
    draws: Annotated[int, Field(ge=100)]
    sizes: dict[SizeName, SizePair] = Field(min_length=3)
    part: Count
    concepts: tuple[ConceptSource, ...] = Field(min_length=1)
    familiarity: FamiliarityLengths
    baselines: BaselineLengths
    judge: JudgeService | None
    worksheet: str | None
    familiar_above: Annotated[float, Field(ge=1, le=9)]
    rows: dict[str, dict[str, str]]

    @model_validator(mode="after")
    def _have_one_judge(self) -> FamiliarityDeclaration:
        if self.judge is not None and self.worksheet is not None:
            raise ValueError("judge and worksheet: name one of the two")
        return self

    def resize(self, sizes: Mapping[str, tuple[int, int]]) -> FamiliarityDeclaration:
        """Return the study with other `sizes` by name.

        Raises:
            AbstainError: there is no such size.
        """
        for name in sizes:
            if name not in self.sizes:
                raise AbstainError(Code.UNKNOWN_NAME, f"no size '{name}': there are {', '.join(self.sizes)}")
        return self.model_copy(update={"sizes": self.sizes | dict(sizes)})
