"""The gate in process: `Gate.open(bundle).decide(question, contexts, answer)` for a RAG service in Python.

The server (serving/api) with its gateways, `abstain score` and `abstain generate` decide by the same class. Whatever
prevents a decision makes it `unavailable`, never `show`: no contexts where they are needed, a version without a
guarantee, features that the scorer lacks. `on_unavailable` says what happens to such an answer; by default it is
withheld.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torch import Tensor

from abstain.config.serve_settings import OnUnavailable
from abstain.config.settings import Settings, load_settings
from abstain.core import paths
from abstain.core.bundle_format import is_intact
from abstain.core.codes import Code
from abstain.core.contracts import Chunk, Context, Interaction, Question, list_sources, make_unnamed_context
from abstain.core.errors import AbstainError
from abstain.core.message_text import cut_reasoning, remove_reasoning
from abstain.core.text import is_whole_refusal
from abstain.llm.engine.prompts import load_layout
from abstain.llm.engine.tokenization import EncodedPrompt
from abstain.llm.features.extraction import UnreadableInteraction
from abstain.llm.signals.base import FeatureBatch
from abstain.llm.signals.compute_features import OnComputed, ProvidedFeatures
from abstain.serving.decision import Decision, DecisionReason
from abstain.serving.explanation import Explanation, explain
from abstain.serving.familiarity_check import FamiliarityCheck
from abstain.serving.feature_spec import FeatureSpec
from abstain.serving.log_probs import AnswerLogProbs, parse_log_probs
from abstain.serving.predictor import Predictor
from abstain.serving.provided_features import MissingFeatures, build_provided_features

UNKNOWN_MODEL = "unknown"
"""The model of an answer if the caller does not name it."""
NO_CONTEXT_REASON = DecisionReason(
    Code.NOTHING_TO_SCORE, "no context was given, and the scorer was trained to judge answers by theirs"
)


@dataclass(frozen=True)
class DecisionInput:
    """An answer to decide about: its texts, what an engine computed for it, or both.

    Attributes:
        interaction_id: Id of the answer.
        interaction: Its texts; None if they are unknown.
        allow_no_context: Decide even if the answer has no context.
        states: The probe's input, float32 (tokens, d), as `FeatureSpec` describes it.
        log_probs: Verified log-probabilities of the answer's tokens.
    """

    interaction_id: str
    interaction: Interaction | None
    allow_no_context: bool = False
    states: Tensor | None = None
    log_probs: AnswerLogProbs | None = None


@dataclass(frozen=True)
class UnreadAnswer:
    """An answer that the base model has to read.

    Attributes:
        interaction: Its texts.
        provided: The features that the caller provided.
    """

    interaction: Interaction
    provided: ProvidedFeatures


@dataclass(frozen=True)
class ScoredAnswer:
    """A decision with the answer's features, which a shadow uses again (serving/service/shadow.py).

    Attributes:
        decision: The decision.
        features: The answer with its features; None if there are none.
    """

    decision: Decision
    features: FeatureBatch | None = None


@dataclass(frozen=True)
class Gate:
    """A version that is ready to decide.

    Attributes:
        predictor: Scores answers and applies the version's threshold.
        spec: Specification of what its scorer reads.
        on_unavailable: What happens to an answer without a decision: "abstain" or "show".
        familiarity: Asks the familiarity of questions that the base model is to answer; None if that is off.
        chunks: Id -> chunk of the knowledge base, by which decisions name their sources with heading and page.
    """

    predictor: Predictor
    spec: FeatureSpec
    on_unavailable: OnUnavailable = "abstain"
    familiarity: FamiliarityCheck | None = None
    chunks: Mapping[str, Chunk] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        bundle: Path,
        settings: Settings | None = None,
        on_unavailable: OnUnavailable = "abstain",
        on_computed: OnComputed | None = None,
        digest: str | None = None,
    ) -> Gate:
        """Open the gate of a bundle.

        Args:
            bundle: Folder of the bundle.
            settings: Settings; loaded if None.
            on_unavailable: What happens to an answer without a decision.
            on_computed: Called with each feature that is computed for a decision (`Predictor.open`).
            digest: `bundle_sha256` of the event in registry.json that promoted the version. Without it the files are
                compared only with the digest in the folder itself, which detects damage, but not files that were all
                replaced.

        Returns:
            The gate.

        Raises:
            AbstainError: The files are not those of the version, or `Predictor.open` fails.
        """
        if not is_intact(bundle, digest):
            raise AbstainError(
                Code.BAD_ARTIFACT,
                f"the files in {bundle} are missing, or not those that were released: fetch the release again",
            )
        settings = settings or load_settings()
        predictor = Predictor.open(bundle / paths.RELEASED_ONNX.name, settings, on_computed)
        return cls(predictor, FeatureSpec.from_scorer(predictor.scorer, settings), on_unavailable)

    @property
    def version(self) -> str:
        """Name of the version."""
        return self.predictor.scorer.metadata["version"]

    def decide(
        self,
        question: str | None = None,
        contexts: Sequence[str | Context] = (),
        answer: str | None = None,
        *,
        states: Tensor | None = None,
        response: Mapping[str, Any] | None = None,
        interaction_id: str | None = None,
        allow_no_context: bool = False,
    ) -> Decision:
        """Decide whether one answer may be shown.

        Pass the texts (`question` and `answer`), what an engine computed (`states` or `response`), or both.

        Args:
            question: The user's question.
            contexts: Retrieved chunks, best first.
            answer: The answer to decide about.
            states: float32 (tokens, d) hidden states as described by `spec`; the base model reads nothing again for
                them.
            response: Response of an OpenAI-style API with log-probabilities.
            interaction_id: Your id for this answer; generated if None.
            allow_no_context: Decide even if nothing was retrieved.

        Returns:
            The decision. If inputs are missing it is "unavailable", and `reason` names them.

        Raises:
            AbstainError: Only one of question and answer is given, or states or log-probabilities are of another
                answer.
            pydantic.ValidationError: A text is empty.
        """
        if (question is None) != (answer is None):
            raise AbstainError(Code.USAGE, "a question and its answer go together: give both, or states alone")
        interaction = None
        if question is not None and answer is not None:
            interaction = make_interaction(question, contexts, answer, interaction_id)
        resolved_id = interaction.interaction_id if interaction else interaction_id or make_interaction_id()
        log_probs = None if response is None else self.parse_log_probs(response, interaction)
        (decision,) = self.decide_all([DecisionInput(resolved_id, interaction, allow_no_context, states, log_probs)])
        return decision

    def parse_log_probs(self, response: Mapping[str, Any], interaction: Interaction | None) -> AnswerLogProbs:
        """Parse the log-probabilities in the response of an engine.

        Args:
            response: Response of an OpenAI-style API.
            interaction: Texts of the answer; None if they are unknown.

        Returns:
            The log-probabilities of the answer's tokens.

        Raises:
            AbstainError: They are missing or of another answer.
        """
        return parse_log_probs(
            response,
            self.spec,
            interaction.answer if interaction else None,
            self.encode(interaction) if interaction else None,
        )

    def encode(self, interaction: Interaction) -> EncodedPrompt:
        """Return the tokens that the base model reads for an answer.

        Args:
            interaction: Texts of the answer.

        Returns:
            The encoded prompt.

        Raises:
            AbstainError: The base model cannot read the texts.
        """
        prompt = self.predictor.source.encode(interaction)
        if isinstance(prompt, UnreadableInteraction):
            raise AbstainError(Code.TOO_LONG, prompt.reason)
        return prompt

    def decide_all(self, inputs: Sequence[DecisionInput]) -> list[Decision]:
        """Decide about several answers in as few forward passes of the base model as possible.

        Args:
            inputs: The answers.

        Returns:
            One decision per answer, in order.

        Raises:
            AbstainError: As in `score_without_model`, or the base model's results are not finite.
        """
        return [scored.decision for scored in self.score_all(inputs)]

    def score_all(self, inputs: Sequence[DecisionInput]) -> list[ScoredAnswer]:
        """Decide about several answers and return their features, too.

        Args:
            inputs: The answers.

        Returns:
            One decision with features per answer, in order.

        Raises:
            AbstainError: As in `decide_all`.
        """
        outcomes = [self._clean_and_score(decision_input) for decision_input in inputs]
        read = iter(self.score_with_model([outcome for outcome in outcomes if isinstance(outcome, UnreadAnswer)]))
        scored = [next(read) if isinstance(outcome, UnreadAnswer) else outcome for outcome in outcomes]
        return [
            replace(answer, decision=self.apply_answer_rules(answer.decision, interaction))
            if (interaction := decision_input.interaction)
            else answer
            for answer, decision_input in zip(scored, inputs, strict=True)
        ]

    def _clean_and_score(self, decision_input: DecisionInput) -> ScoredAnswer | UnreadAnswer:
        sent = decision_input.interaction
        try:
            if sent is not None and (interaction := self.cut_reasoning(sent)) is not sent:
                # what an engine computed is of the reasoning, too
                decision_input = replace(decision_input, interaction=interaction, states=None, log_probs=None)
        except AbstainError as error:
            reason = DecisionReason.from_error(error)
            return ScoredAnswer(self.make_unavailable_decision(decision_input.interaction_id, reason))
        return self.score_without_model(decision_input)

    def cut_reasoning(self, interaction: Interaction) -> Interaction:
        """Cut the model's reasoning out of an answer, by the version's markers (`message_text.cut_reasoning`).

        Raises:
            AbstainError: The reasoning does not end, or nothing else is in the answer.
        """
        try:
            return cut_reasoning(interaction, self.predictor.reasoning)
        except ValueError as error:
            raise AbstainError(Code.ONLY_REASONING, f"answer: {error}") from None

    def apply_answer_rules(self, decision: Decision, sent: Interaction) -> Decision:
        """Show an answer that is nothing but a listed refusal; name its sources, and what is left without reasoning.

        Args:
            decision: The decision.
            sent: The answer as it came.

        Returns:
            The decision.
        """
        decision = replace(decision, sources=list_sources(sent.contexts, self.chunks))
        if decision.reason and decision.reason.code is Code.ONLY_REASONING:
            return decision
        answer = remove_reasoning(sent.answer, self.predictor.reasoning)
        if not decision.show and is_whole_refusal(answer, self.predictor.refusals):
            reason = DecisionReason(Code.LISTED_REFUSAL, "the answer is nothing but a refusal of `labels.refusals`")
            decision = replace(decision, show=True, reason=decision.reason or reason)
        return decision if answer == sent.answer else replace(decision, cleaned_answer=answer)

    def score_without_model(self, decision_input: DecisionInput) -> ScoredAnswer | UnreadAnswer:
        """Decide without running the base model, if possible.

        Args:
            decision_input: Texts, states and log-probabilities of one answer.

        Returns:
            The decision and its features; it is "unavailable" if there is nothing to decide by. If the base model has
            to read the answer, the input of `score_with_model`.

        Raises:
            AbstainError: States and log-probabilities have different numbers of tokens.
        """
        interaction_id, interaction = decision_input.interaction_id, decision_input.interaction
        if interaction is not None and self.is_context_missing(interaction, decision_input.allow_no_context):
            return ScoredAnswer(self.make_unavailable_decision(interaction_id, NO_CONTEXT_REASON))
        features = build_provided_features(
            self.predictor.scorer, interaction, decision_input.states, decision_input.log_probs
        )
        if not isinstance(features, MissingFeatures):
            (decision,) = self.predictor.score_answers(features, [None], [0.0])
            return ScoredAnswer(self.apply_policy(replace(decision, interaction_id=interaction_id)), features)
        if interaction is not None:
            return UnreadAnswer(interaction, features.features)
        message = f"the scorer needs more: {', '.join(features.names)}; give the texts as well"
        reason = DecisionReason(Code.NOTHING_TO_SCORE, message)
        return ScoredAnswer(self.make_unavailable_decision(interaction_id, reason))

    def score_with_model(self, unread: Sequence[UnreadAnswer]) -> list[ScoredAnswer]:
        """Decide about answers that the base model reads together.

        Args:
            unread: The answers.

        Returns:
            One decision with features per answer, in order.
        """
        result = self.predictor.reader.read(
            [answer.interaction for answer in unread], [answer.provided for answer in unread]
        )
        decisions = self.predictor.score_answers(result.batch, result.unreadable, result.forward_tokens)
        return [
            ScoredAnswer(self.apply_policy(decision), None if unreadable else result.batch.take([index]))
            for index, (decision, unreadable) in enumerate(zip(decisions, result.unreadable, strict=True))
        ]

    def explain(self, interaction: Interaction, allow_no_context: bool = False) -> Explanation:
        """Decide about one answer and explain the decision.

        Args:
            interaction: Texts of the answer.
            allow_no_context: Decide even if nothing was retrieved.

        Returns:
            The decision with its explanation.

        Raises:
            AbstainError: As in `decide_all`.
        """
        (scored,) = self.score_all([DecisionInput(interaction.interaction_id, interaction, allow_no_context)])
        return explain(self.predictor, scored.decision, scored.features)

    def is_context_missing(self, question: Interaction | Question, allow_no_context: bool) -> bool:
        """Return whether the scorer needs contexts and there are none.

        Args:
            question: Question or answer with its contexts.
            allow_no_context: Whether the missing context is intended.

        Returns:
            True if nothing was retrieved, the prompt has a place for contexts, and their absence is not intended.
        """
        if allow_no_context or question.contexts or not self.predictor.scorer.requires:
            return False
        return load_layout(self.predictor.source.params.layout).takes_contexts

    def make_unavailable_decision(self, interaction_id: str, reason: DecisionReason) -> Decision:
        """Return an "unavailable" decision.

        Args:
            interaction_id: Id of the answer.
            reason: Why there is no decision.

        Returns:
            The decision; `show` follows the unavailable policy.
        """
        threshold, guarantee = self.predictor.threshold, self.predictor.guarantee.summarize()
        return self.apply_policy(
            Decision(interaction_id, "unavailable", None, threshold, self.version, guarantee, reason=reason)
        )

    def apply_policy(self, decision: Decision) -> Decision:
        """Apply the version's guarantee and the unavailable policy to a decision.

        Without an active guarantee every decision becomes "unavailable". An unavailable answer is shown only if
        `on_unavailable` is "show", and never if its reasoning does not end.

        Args:
            decision: Decision of the predictor.

        Returns:
            The decision with `feature_spec`, `decision`, `show` and `reason` set.
        """
        decision = replace(decision, feature_spec=self.spec.digest)
        if decision.decision != "unavailable" and self.predictor.guarantee.status != "active":
            reason = DecisionReason(Code.NO_THRESHOLD, f"version {self.version} has no guarantee: see GET /v1/version")
            decision = replace(decision, decision="unavailable", reason=decision.reason or reason)
        if decision.decision == "unavailable":
            is_endless = decision.reason is not None and decision.reason.code is Code.ONLY_REASONING
            decision = replace(decision, show=self.on_unavailable == "show" and not is_endless)
        return decision

    def warm_up(self) -> None:
        """Load the base model and run every component once, so that the first request is not the slowest."""
        self.decide("Is this read?", ["Yes."], "Yes.")


def make_interaction(
    question: str, contexts: Sequence[str | Context], answer: str, interaction_id: str | None = None
) -> Interaction:
    """Build an answered question from its texts.

    Args:
        question: The user's question.
        contexts: Retrieved chunks, best first.
        answer: The answer.
        interaction_id: Its id; generated if None.

    Returns:
        The interaction, asked now.

    Raises:
        pydantic.ValidationError: A text is empty.
    """
    return Interaction(
        interaction_id=interaction_id or make_interaction_id(),
        asked_at=datetime.now(UTC),
        question=question,
        answer=answer,
        contexts=to_contexts(contexts),
        model=UNKNOWN_MODEL,
    )


def to_contexts(contexts: Sequence[str | Context]) -> tuple[Context, ...]:
    """Convert texts to contexts; a context without an id is named after its text."""
    return tuple(context if isinstance(context, Context) else make_unnamed_context(context) for context in contexts)


def make_interaction_id() -> str:
    """Return a new id for an interaction that has none."""
    return f"gate-{secrets.token_hex(12)}"
