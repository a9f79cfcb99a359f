"""The live scorer of a bundle, which computes the confidence of an answer from the base model's features.

It is one of the scorers that can be served (llm/signals/servable.py), with fitted parameters read from ONNX files: the
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
    """The part of the scorer protocol (llm/signals/base.py) that a fitted scorer needs."""

    @property
    def requires(self) -> tuple[FeatureRequest, ...]: ...

    def score(self, answers: FeatureBatch) -> np.ndarray: ...


@dataclass(frozen=True)
class ExportedProbe:
    """The probe as a scorer of `FeatureBatch`.

    Attributes:
        onnx: The probe.
        states_request: Feature request of the hidden states that it reads.
    """

    onnx: OnnxProbe
    states_request: FeatureRequest

    @property
    def requires(self) -> tuple[FeatureRequest, ...]:
        return (self.states_request,)

    def score(self, answers: FeatureBatch) -> np.ndarray:
        """Return confidences, float64 (rows,); nan for rows without states."""
        rows = answers.features[self.states_request]
        scores = np.full(len(answers), np.nan)
        indices = [index for index, row in enumerate(rows) if row is not None]
        scores[indices] = self.onnx.predict([row.float() for row in rows if row is not None])
        return scores


@dataclass(frozen=True)
class WriterScorer:
    """The writer's scores as a scorer: `writer` ranks them, and the ONNX file computes a confidence from the ranks.

    Attributes:
        onnx: Logistic regression on the ranks.
        writer: Ranks of the writer's scores.
        requires: Nothing of the base model.
    """

    onnx: OnnxLogistic
    writer: WriterScores
    requires: tuple[FeatureRequest, ...] = ()

    def score(self, answers: FeatureBatch) -> np.ndarray:
        """Return confidences, float64 (rows,); nan for rows without the writer's scores."""
        inputs, has_scores = self.writer.build_inputs(answers)
        return np.where(has_scores, self.onnx.predict(inputs), np.nan)


@dataclass(frozen=True)
class FusedScorer:
    """A fusion of several scorers.

    Attributes:
        onnx: Logistic regression on the scores of the components.
        components: Scorers by name, in the order of the ONNX file's inputs.
    """

    onnx: OnnxLogistic
    components: Mapping[str, ScorerComponent]

    @property
    def requires(self) -> tuple[FeatureRequest, ...]:
        return tuple(dict.fromkeys(request for component in self.components.values() for request in component.requires))

    def score(self, answers: FeatureBatch) -> np.ndarray:
        """Return confidences, float64 (rows,)."""
        scores = np.column_stack([component.score(answers) for component in self.components.values()])
        return self.onnx.predict(scores)


@dataclass(frozen=True)
class LiveScorer:
    """The scorer of a bundle.

    Attributes:
        probe: The probe's ONNX file.
        metadata: Metadata of that file.
        llm: Base model and prompt layout of the training.
        name: Name of the scorer.
        kind: Its kind.
        forward_tokens: Mean number of tokens that the base model read for an answer in training; None if unknown.
        scorer: The scorer itself.
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
        """Open the scorer of a bundle.

        Args:
            file: ONNX file of the bundle's probe.

        Returns:
            The scorer.

        Raises:
            AbstainError: The file has another format or incomplete metadata, or another file is missing or was changed.
        """
        probe = OnnxProbe(file)
        metadata = probe.metadata
        require_format(metadata)
        try:
            values = {key: metadata[key] for key in ("model", "layout", "layer", "site", "too_long", "includes_eos")}
            llm = LLMParams.model_validate(
                {**values, "model": pin_revision(values["model"], metadata["model_revision"])}
            )
            description = json.loads(metadata["scorer"])
            name, tokens = description["name"], description["forward_tokens"]
            loader = _ComponentLoader(
                probe, llm, file.parent / paths.ONNX_PARTS.name, description["kinds"], description["sha256"]
            )
            scorer, kind = loader.load(name), description["kinds"][name]
        except (KeyError, TypeError, ValueError):
            raise AbstainError(
                Code.BAD_ARTIFACT, f"{file} carries no complete metadata: export it with this project"
            ) from None
        return cls(probe, metadata, llm, name, kind, tokens, scorer)

    @property
    def components(self) -> Mapping[str, ScorerComponent]:
        """The components of a fusion by name; any other scorer is its only component."""
        return self.scorer.components if isinstance(self.scorer, FusedScorer) else {self.name: self.scorer}

    @property
    def writer(self) -> WriterScores | None:
        """The ranks of the writer's scores; None if the scorer does not use them."""
        components = self.components.values()
        return next((component.writer for component in components if isinstance(component, WriterScorer)), None)

    @property
    def requires(self) -> tuple[FeatureRequest, ...]:
        """Features that the base model computes for an answer; none for the writer's scores."""
        return self.scorer.requires

    def score(self, answers: FeatureBatch) -> np.ndarray:
        """Return confidences, float64 (rows,); nan if there is none."""
        return np.asarray(self.scorer.score(answers), float)

    def score_components(self, answers: FeatureBatch) -> dict[str, np.ndarray]:
        """Return the scores of each component.

        Args:
            answers: Answers with the features that `requires` lists.

        Returns:
            Scores, float64 (rows,), by component name; nan if a component has none.
        """
        return {name: np.asarray(component.score(answers), float) for name, component in self.components.items()}


@dataclass(frozen=True)
class _ComponentLoader:
    """Loads the components of a bundle by name.

    Attributes:
        probe: The probe.
        llm: Base model and prompt layout of the training.
        folder: Folder of the ONNX files.
        kinds: Kind of scorer by name.
        sha256: Checksum of the ONNX file by name.
    """

    probe: OnnxProbe
    llm: LLMParams
    folder: Path
    kinds: Mapping[str, ServableKind]
    sha256: Mapping[str, str]

    def load(self, name: str) -> ScorerComponent:
        kind = self.kinds[name]
        if kind == "probe":
            return ExportedProbe(self.probe, FeatureRequest(make_probe_operation(self.llm)))
        if kind == "log_prob":
            return {signal.name: signal for signal in LIKELIHOOD_SIGNALS}[name]
        content = self._read(name)
        if kind == "regressor":
            from abstain.learning.estimators.regressors.onnx_regressor import OnnxRegressor
            from abstain.serving.nll_regressor import NllRegressor

            return NllRegressor(OnnxRegressor(content), self.llm.layout)
        onnx = OnnxLogistic(content)
        if kind == "writer":
            return WriterScorer(onnx, WriterScores.from_dict(onnx.metadata))
        return FusedScorer(
            onnx, {component_name: self.load(component_name) for component_name in onnx.metadata["names"]}
        )

    def _read(self, name: str) -> bytes:
        file = self.folder / f"{name}.onnx"
        content = file.read_bytes() if file.is_file() else b""
        if hashlib.sha256(content).hexdigest() != self.sha256[name]:
            raise AbstainError(
                Code.BAD_ARTIFACT, f"{file} is missing or another file than was released: fetch the release again"
            )
        return content
