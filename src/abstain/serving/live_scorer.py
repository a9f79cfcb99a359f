"""The live scorer of a bundle: a scorer of the leaderboard, with what it learnt read from ONNX files.

A scorer that learnt nothing is made by name (llm/signals/registry.py), as it is for a retrain. The probe, regressors,
the regression on the writer's scores and fusions are files of the bundle.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from abstain.config.params import LLMParams, PerturbationParams
from abstain.config.settings import Settings
from abstain.core import paths
from abstain.core.bundle_format import require_format
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.scorer_names import FUSIONS, PROBE, WRITER
from abstain.knowledge.retrieval.encoder import EMBEDDED_ENCODER, SentenceEncoder
from abstain.learning.estimators.onnx_logistic import OnnxLogistic
from abstain.learning.estimators.onnx_probe import OnnxProbe
from abstain.llm.engine.loading import find_model, pin_revision
from abstain.llm.engine.requests import make_probe_operation
from abstain.llm.features.feature_request import FeatureRequest
from abstain.llm.signals.base import FeatureBatch, RunsModel
from abstain.llm.signals.registry import make_scorer
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
        forward_tokens: Mean number of tokens that the base model read for an answer in training; None if unknown.
        scorer: The scorer itself.
    """

    probe: OnnxProbe
    metadata: Mapping[str, str]
    llm: LLMParams
    name: str
    forward_tokens: float | None
    scorer: ScorerComponent

    @classmethod
    def open(cls, file: Path, settings: Settings) -> LiveScorer:
        """Open the scorer of a bundle.

        Args:
            file: ONNX file of the bundle's probe.
            settings: Settings with the place of the models.

        Returns:
            The scorer.

        Raises:
            AbstainError: The file has another format or incomplete metadata, another file is missing or was changed, or
                a model that the scorer runs is not on this machine, or another revision of it.
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
            loader = _ComponentLoader(probe, llm, settings, file.parent / paths.ONNX_PARTS.name, description)
            scorer = loader.load(description["name"])
            return cls(probe, metadata, llm, description["name"], description["forward_tokens"], scorer)
        except (KeyError, TypeError, ValueError):
            raise AbstainError(
                Code.BAD_ARTIFACT, f"{file} carries no complete metadata: export it with this project"
            ) from None

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

    @property
    def running(self) -> tuple[RunsModel, ...]:
        """The components that run a model when they score."""
        return tuple(component for component in self.components.values() if isinstance(component, RunsModel))

    @property
    def needs_model(self) -> bool:
        """Whether a model runs for a decision; none does for the writer's scores."""
        return bool(self.requires or self.running)

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
        settings: Settings of this machine.
        folder: Folder of the ONNX files.
        description: Metadata of the scorer: checksums of the files (`sha256`), models beside the base model (`models`)
            and the perturbation of contexts.
    """

    probe: OnnxProbe
    llm: LLMParams
    settings: Settings
    folder: Path
    description: Mapping[str, Any]

    def load(self, name: str) -> ScorerComponent:
        if name == PROBE:
            return ExportedProbe(self.probe, FeatureRequest(make_probe_operation(self.llm)))
        if name not in self.description["sha256"]:
            return make_scorer(name, self.llm, {name: self._find_trained_model(name)}, self.settings)
        content = self._read(name)
        if name == WRITER:
            onnx = OnnxLogistic(content)
            return WriterScorer(onnx, WriterScores.from_dict(onnx.metadata))
        if name in FUSIONS:
            onnx = OnnxLogistic(content)
            return FusedScorer(onnx, {component: self.load(component) for component in onnx.metadata["names"]})
        return self._load_regressor(content)

    def _load_regressor(self, content: bytes) -> ScorerComponent:
        from abstain.learning.estimators.regressors.onnx_regressor import OnnxRegressor
        from abstain.llm.signals.context_conditions import ContextConditions
        from abstain.serving.nll_regressor import NllRegressor, PerturbedRegressor

        perturbation = PerturbationParams.model_validate(self.description["perturbation"])
        perturbation = perturbation.model_copy(update={"model": self._find_trained_model("perturbation")})
        make_regressor = PerturbedRegressor if perturbation.n_copies else NllRegressor
        return make_regressor(OnnxRegressor(content), ContextConditions(self.llm, perturbation, self.settings))

    def _find_trained_model(self, user: str) -> str | None:
        """Return the name of the model of the training that `user` runs; None if it is the base model, or none."""
        if user not in self.description["models"]:
            return None
        name, revision = self.description["models"][user]
        is_encoder, pinned = name == EMBEDDED_ENCODER, pin_revision(name, revision)
        local_revision = SentenceEncoder().identity if is_encoder else find_model(pinned, self.settings).revision
        if local_revision != revision:
            raise AbstainError(
                Code.VERSION_MISMATCH,
                f"{user} was trained with {name}@{revision}, but this machine has @{local_revision}: fetch that "
                "revision, or retrain",
            )
        return pinned

    def _read(self, name: str) -> bytes:
        file = self.folder / f"{name}.onnx"
        content = file.read_bytes() if file.is_file() else b""
        if hashlib.sha256(content).hexdigest() != self.description["sha256"][name]:
            raise AbstainError(
                Code.BAD_ARTIFACT, f"{file} is missing or another file than was released: fetch the release again"
            )
        return content
