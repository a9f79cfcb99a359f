"""Familiarity before generation: whether the base model knows what a question names is asked before it answers.

If the Self-Familiarity of a question (Luo et al.) is below the threshold h, no answer is written. Or it is written with
background on the unfamiliar concepts, as in the paper's case study: chunks that the asker may read. A chunk is
background on a concept if it has all words of its name, since the nearest chunk of an index need not be about it; so a
chunk that the question came with may be one, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from abstain.core.codes import Code
from abstain.core.contracts import Context, Question
from abstain.llm.engine.requests import Request
from abstain.llm.familiarity.concepts import require_packages
from abstain.llm.familiarity.familiarity import SelfFamiliarity
from abstain.llm.familiarity.words import split_words
from abstain.llm.features.extraction import FeatureSource, PreparedRequest, UnreadableInteraction
from abstain.llm.features.feature_store import OnProgress
from abstain.serving.decision import DecisionReason

RetrieveChunks = Callable[[str, Sequence[str], int], Sequence[Context]]
"""Returns the chunks nearest to a text that a user with these entitlements may read, best first, up to a number."""
PrepareQuestion = Callable[[Question], PreparedRequest | UnreadableInteraction]
"""Builds the prompt of a question, from which chunks that do not fit are dropped."""
SEARCHED_CHUNKS = 10
"""Number of the nearest chunks among which background on a concept is looked for."""
CHUNKS_PER_CONCEPT = 2
MAX_NAME_CHARACTERS = 80
"""Of a longer concept, a reason quotes the beginning."""
_log = logging.getLogger("abstain.serve")


@dataclass(frozen=True)
class CheckedQuestion:
    """A question whose familiarity was asked.

    Attributes:
        question: The question; background comes before its own contexts.
        request: Its prompt and the generation; None if no answer is to be written.
        reason: The unfamiliar concepts and what follows from them; None if the question is familiar.
        forward_tokens: Tokens that went through the base model for the check.
    """

    question: Question
    request: Request | None
    reason: DecisionReason | None
    forward_tokens: float


@dataclass(frozen=True)
class FamiliarityCheck:
    """Asks the familiarity of questions.

    Attributes:
        familiarity: Self-Familiarity with the base model that answers.
        threshold: The threshold h.
        retrieve: Retrieves background; None withholds the answer instead.
    """

    familiarity: SelfFamiliarity
    threshold: float
    retrieve: RetrieveChunks | None = None

    @classmethod
    def open(
        cls,
        source: FeatureSource,
        retrieve: RetrieveChunks | None = None,
        on_progress: OnProgress = lambda done, total: None,
    ) -> FamiliarityCheck:
        """Open the check; h is computed unless the cache has it.

        Args:
            source: Source with the base model.
            retrieve: Retrieves background; None withholds the answer instead.
            on_progress: Called with (done, total) requests for h.

        Returns:
            The check.

        Raises:
            AbstainError: The extra `familiarity` is not installed.
        """
        require_packages()
        familiarity = SelfFamiliarity(source.params.model, source.params.layout, source.settings)
        threshold = familiarity.get_cached_threshold()
        if threshold is None:
            _log.info("the familiarity threshold of %s is computed, once; it takes minutes", source.params.model)
            threshold = familiarity.estimate_threshold(on_progress)
        return cls(familiarity, threshold, retrieve)

    def check(
        self, question: Question, request: Request, entitlements: Sequence[str], prepare: PrepareQuestion
    ) -> CheckedQuestion:
        """Ask the familiarity of a question, and find background on what is unfamiliar.

        Args:
            question: The question with its contexts.
            request: Its prompt and the generation.
            entitlements: The asker's entitlements.
            prepare: Builds the prompt of a question.

        Returns:
            The question as it may be answered, or why it may not.
        """
        concepts, n_tokens = self._find_unfamiliar(question.question)
        if not concepts:
            return CheckedQuestion(question, request, None, n_tokens)
        if self.retrieve is None:
            reason = _make_reason(concepts, ": no answer was written")
            return CheckedQuestion(question, None, reason, n_tokens)
        background = self._retrieve_background(question, concepts, entitlements)
        # In front, because chunks that do not fit into the prompt are dropped from the end.
        question = question.model_copy(update={"contexts": (*background, *question.contexts)})
        prepared = prepare(question)
        chunks = _get_chunks_read(question, prepared)
        lacking = [concept for concept in concepts if not _find_naming(concept, chunks)]
        if lacking or isinstance(prepared, UnreadableInteraction):
            consequence = (
                ", and there is no chunk on it that the asker may read and that fits into the prompt: no answer was "
                "written; add a document, or grant the entitlement to one"
            )
            return CheckedQuestion(question, None, _make_reason(lacking or concepts, consequence), n_tokens)
        ids = dict.fromkeys(chunk.chunk_id for concept in concepts for chunk in _find_naming(concept, chunks))
        reason = _make_reason(concepts, f": it read {', '.join(ids)}")
        return CheckedQuestion(question, prepared.request, reason, n_tokens)

    def _find_unfamiliar(self, question: str) -> tuple[list[str], float]:
        """Return the unfamiliar concepts of a question below h, and the forward tokens that this took."""
        tokens_before = self.familiarity.cost.forward_tokens
        (result,) = self.familiarity.score([question])
        n_tokens = self.familiarity.cost.forward_tokens - tokens_before
        if not result.concepts:
            return [], n_tokens
        if result.score is None:  # each is longer than a guess: nothing shows that the model knows them
            return [guess.concept for guess in result.concepts], n_tokens
        return (result.find_unfamiliar(self.threshold) if result.score < self.threshold else []), n_tokens

    def _retrieve_background(
        self, question: Question, concepts: Sequence[str], entitlements: Sequence[str]
    ) -> list[Context]:
        """Return chunks on the concepts that no context of the question names, each chunk once."""
        assert self.retrieve is not None
        chunk_by_id: dict[str, Context] = {}
        for concept in concepts:
            if not _find_naming(concept, question.contexts):
                nearest = self.retrieve(concept, entitlements, SEARCHED_CHUNKS)
                chunk_by_id |= {chunk.chunk_id: chunk for chunk in _find_naming(concept, nearest)[:CHUNKS_PER_CONCEPT]}
        return list(chunk_by_id.values())


def _get_chunks_read(question: Question, prepared: PreparedRequest | UnreadableInteraction) -> Sequence[Context]:
    if isinstance(prepared, UnreadableInteraction):
        return ()
    return question.contexts[: len(question.contexts) - prepared.dropped_chunks]


def _find_naming(concept: str, chunks: Sequence[Context]) -> list[Context]:
    """Return the chunks that have all words of a concept, in any case.

    Of a concept with capitals only these words count: the parser of the question may take a verb for a part of a name.
    """
    words = {word for word in split_words(concept) if word[:1].isupper()} or set(split_words(concept))
    return [chunk for chunk in chunks if _casefold(words) <= _casefold(split_words(chunk.text))]


def _casefold(words: Iterable[str]) -> set[str]:
    return {word.casefold() for word in words}


def _make_reason(concepts: Sequence[str], consequence: str) -> DecisionReason:
    names = (name if len(name) <= MAX_NAME_CHARACTERS else f"{name[:MAX_NAME_CHARACTERS]}…" for name in concepts)
    return DecisionReason(Code.UNFAMILIAR, f"the base model does not know {', '.join(names)}{consequence}")
