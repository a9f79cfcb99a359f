"""The live scorer of a bundle: what turns the base model's results for an answer into its confidence.

It is one of the scorers that can be served (llm/signals/servable.py), with what was learnt read from ONNX files: the
probe, a regressor on NLLs, a log-probability, the writer's own scores, or a fusion of these.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from abstain.config.params import LLMParams, ServableKind
from abstain.core import paths
from abstain.core.bundle_format import require_format
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.learning.estimators.onnx_logistic import OnnxLogistic
from abstain.learning.estimators.onnx_probe import OnnxProbe
from abstain.llm.engine.loading import pin_revision
from abstain.llm.engine.requests import make_probe_operation
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.base import FeatureBatch
from abstain.llm.signals.likelihood import LIKELIHOOD_SIGNALS
from abstain.llm.signals.writer import WriterScores


class ScorerComponent(Protocol):
    """What the protocol of all scorers (llm/signals/base.py) asks of one that is fitted."""

    @property
    def readings(self) -> tuple[FeatureRequest, ...]: ...

    def score(self, answers: FeatureBatch) -> np.ndarray: ...


@dataclass(frozen=True)
class ExportedProbe:
    """The probe as a scorer of `FeatureBatch`; `reading` is that of its states."""

    onnx: OnnxProbe
    states_request: FeatureRequest

    @property
    def readings(self) -> tuple[FeatureRequest, ...]:
        return (self.states_request,)

    def score(self, answers: FeatureBatch) -> np.ndarray:
        rows = answers.features[self.states_request]
        scores = np.full(len(answers), np.nan)
        known = [at for at, row in enumerate(rows) if row is not None]
        scores[known] = self.onnx.confidence([row.float() for row in rows if row is not None])
        return scores


@dataclass(frozen=True)
class WriterScorer:
    """The writer's scores: `writer` ranks them, and the ONNX file makes a confidence of the ranks."""

    onnx: OnnxLogistic
    writer: WriterScores
    readings: tuple[FeatureRequest, ...] = ()

    def score(self, answers: FeatureBatch) -> np.ndarray:
        inputs, known = self.writer.build_inputs(answers)
        return np.where(known, self.onnx.confidence(inputs), np.nan)


@dataclass(frozen=True)
class FusedScorer:
    """A fusion of `parts`, by name, in the order of its ONNX file's inputs."""

    onnx: OnnxLogistic
    components: Mapping[str, ScorerComponent]

    @property
    def readings(self) -> tuple[FeatureRequest, ...]:
        return tuple(dict.fromkeys(reading for part in self.components.values() for reading in part.readings))

    def score(self, answers: FeatureBatch) -> np.ndarray:
        scores = np.column_stack([part.score(answers) for part in self.components.values()])
        return self.onnx.confidence(scores)


@dataclass(frozen=True)
class LiveScorer:
    """The scorer that decides, as released.

    Attributes:
        head: the probe's ONNX file. metadata: its own. llm: the base model of the training.
        forward_tokens: what that reads for an answer, in the mean of those that it was trained on; None is not known.
    """

    probe: OnnxProbe
    metadata: Mapping[str, str]
    llm: LLMParams
    name: str
    kind: ServableKind
    forward_tokens: float | None
    scorer: ScorerComponent

    @classmethod
    def open(cls, file: Path) -> LiveScorer:
        """The live scorer of a release, by its probe's ONNX file.

        Raises `AbstainError` where that has another format or no complete metadata, or another file is missing or was
        changed.
        """
        head = OnnxProbe(file)
        metadata = head.metadata
        require_format(metadata)
        try:
            values = {key: metadata[key] for key in ("model", "layout", "layer", "site", "too_long", "includes_eos")}
            llm = LLMParams.model_validate(
                {**values, "model": pin_revision(values["model"], metadata["model_revision"])}
            )
            described = json.loads(metadata["scorer"])
            name, tokens = described["name"], described["forward_tokens"]
            parts = _ComponentLoader(
                head, llm, file.parent / paths.ONNX_PARTS.name, described["kinds"], described["sha256"]
            )
            scorer, kind = parts.load(name), described["kinds"][name]
        except (KeyError, TypeError, ValueError):
            raise AbstainError(
                Code.BAD_ARTIFACT, f"{file} carries no complete metadata: export it with this project"
            ) from None
        return cls(head, metadata, llm, name, kind, tokens, scorer)

    @property
    def components(self) -> tuple[ScorerComponent, ...]:
        """The parts of a fusion; any other scorer is its only one."""
        return tuple(self.scorer.components.values()) if isinstance(self.scorer, FusedScorer) else (self.scorer,)

    @property
    def writer(self) -> WriterScores | None:
        """The ranks of the writer's scores, where these are all or a part of the scorer."""
        return next((part.writer for part in self.components if isinstance(part, WriterScorer)), None)

    @property
    def requires(self) -> tuple[FeatureRequest, ...]:
        """What the base model is asked for an answer: nothing by the writer's scores."""
        return self.scorer.readings

    @property
    def component_names(self) -> tuple[str, ...]:
        """The names of the parts of a fusion; of another scorer, its own."""
        return tuple(self.scorer.components) if isinstance(self.scorer, FusedScorer) else (self.name,)

    def score(self, answers: FeatureBatch) -> np.ndarray:
        """Confidences, float64 (rows,); nan where there is none."""
        return np.asarray(self.scorer.score(answers), float)

    def score_components(self, answers: FeatureBatch) -> dict[str, np.ndarray]:
        """The scores of each of `signals`, float64 (rows,); nan where it has none."""
        named = zip(self.component_names, self.components, strict=True)
        return {name: np.asarray(part.score(answers), float) for name, part in named}


@dataclass(frozen=True)
class _ComponentLoader:
    """The parts of a release, by name: their `kinds`, and the checksums, `sha256`, of the ONNX files in `folder`."""

    head: OnnxProbe
    llm: LLMParams
    folder: Path
    kinds: Mapping[str, ServableKind]
    sha256: Mapping[str, str]

    def load(self, name: str) -> ScorerComponent:
        kind = self.kinds[name]
        if kind == "probe":
            return ExportedProbe(self.head, FeatureRequest(make_probe_operation(self.llm)))
        if kind == "log_prob":
            return {one.name: one for one in LIKELIHOOD_SIGNALS}[name]
        content = self._read(name)
        if kind == "regressor":
            from abstain.learning.estimators.regressors.onnx_regressor import OnnxRegressor
            from abstain.serving.nll_regressor import NllRegressor

            return NllRegressor(OnnxRegressor(content), self.llm.layout)
        onnx = OnnxLogistic(content)
        if kind == "writer":
            return WriterScorer(onnx, WriterScores.from_dict(onnx.metadata))
        return FusedScorer(onnx, {of: self.load(of) for of in onnx.metadata["names"]})

    def _read(self, name: str) -> bytes:
        file = self.folder / f"{name}.onnx"
        content = file.read_bytes() if file.is_file() else b""
        if hashlib.sha256(content).hexdigest() != self.sha256[name]:
            raise AbstainError(
                Code.BAD_ARTIFACT, f"{file} is missing or another file than was released: fetch the release again"
            )
        return content
