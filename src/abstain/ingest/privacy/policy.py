"""Personal data, kept out of data/: redaction and pseudonyms, between reading a row and deciding on it.

Notes:

* Question, answer, comment and ideal answer are redacted. Contexts are the handbook's text, which is not secret and
  must stay as the base model read it; `privacy.redact_contexts` is for other retrieved content.
* Redaction comes before deduplication, so that a row ingested again is a duplicate, and held, refused or reported rows
  contain no more than an accepted row. Of a refused row that breaks its contract nothing is kept: a user's id in it
  cannot be told from other text.
* Reviewers are accountable for their verdicts, so their names stay unless `privacy.pseudonymise_reviewers` is set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar, cast

from abstain.config.params import PrivacyParams
from abstain.config.settings import Settings
from abstain.core.contracts import Context, Interaction, Review, Row, Thumb
from abstain.core.markdown import to_single_line
from abstain.core.reasons import Reason
from abstain.ingest.parsing import ParsedRow
from abstain.ingest.privacy.pseudonyms import Pseudonyms, load_user_key
from abstain.ingest.privacy.redaction import Redactor
from abstain.ingest.privacy.search_spans import OVERLAP

LONGEST_MESSAGE = 1_000
"""Characters of a reason's message or of an error: a field's name may be as long as a row."""

R = TypeVar("R", bound=Row)
ReplaceText = Callable[[str], str]


class Privacy:
    """Redaction and pseudonymisation of each incoming row. Made by `from_params` or `disabled`."""

    def __init__(
        self,
        redactor: Redactor | None = None,
        *,
        contexts: bool = False,
        user: ReplaceText | None = None,
        reviewer: ReplaceText | None = None,
    ) -> None:
        self._redactor, self._contexts, self._user, self._reviewer = redactor, contexts, user, reviewer
        self._counts: Counter[str] = Counter()
        self._is_off = redactor is None and user is None and reviewer is None

    @classmethod
    def from_params(cls, params: PrivacyParams, settings: Settings) -> Privacy:
        """The privacy rules of `params`. Makes the pseudonym key where there is none.

        Raises `AbstainError` for an entity that is unknown or can never be found, a spaCy pipeline that is missing, and
        a key that is missing, too short or damaged.
        """
        people = params.pseudonymise or params.pseudonymise_reviewers
        pseudonyms = Pseudonyms(load_user_key(settings)) if people else None
        return cls(
            Redactor(params) if params.redact else None,
            contexts=params.redact_contexts,
            user=pseudonyms.user if pseudonyms and params.pseudonymise else None,
            reviewer=pseudonyms.reviewer if pseudonyms and params.pseudonymise_reviewers else None,
        )

    @classmethod
    def disabled(cls) -> Privacy:
        """Every row as it came."""
        return cls()

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of removed entities of each kind so far, the most frequent first; never the texts."""
        return dict(sorted(self._counts.items(), key=lambda item: (-item[1], item[0])))

    def apply(self, row: ParsedRow) -> ParsedRow:
        """`row` with its contents redacted; documents, `raw` and rows without contents stay as they are."""
        if self._is_off:
            return row
        interaction = self._interaction(row.interaction) if row.interaction else None
        feedback = self._feedback(row.feedback) if row.feedback else None
        review = self._review(row.review) if row.review else None
        if interaction is row.interaction and feedback is row.feedback and review is row.review:
            return row
        return replace(row, interaction=interaction, feedback=feedback, review=review)

    def redact_row(self, row: R) -> R:
        """An interaction, a thumb or a review as `apply` would keep it."""
        if isinstance(row, Interaction):
            return cast(R, self._interaction(row))
        if isinstance(row, Thumb):
            return cast(R, self._feedback(row))
        assert isinstance(row, Review)
        return cast(R, self._review(row))

    def redact(self, text: str) -> str:
        """`text` without the entities; they are counted."""
        if self._redactor is None:
            return text
        redacted, removed = self._redactor.redact(text)
        self._counts.update(removed)
        return redacted

    def redact_message(self, message: str) -> str:
        """`message`, which may quote what somebody typed, as it may be reported: redacted, printable, on one line.

        Of a long one no more is redacted than may be reported.
        """
        shown = self.redact(message[: LONGEST_MESSAGE + OVERLAP])
        if len(message) > LONGEST_MESSAGE + OVERLAP:
            shown = shown[:-OVERLAP]  # where something may have been cut in two, and so was not recognised
        elif len(shown := to_single_line(shown)) <= LONGEST_MESSAGE:
            return shown
        return f"{to_single_line(shown)[:LONGEST_MESSAGE]}…"

    def redact_reason(self, reason: Reason) -> Reason:
        """`reason` with its field and message as they may be reported."""
        return replace(reason, field=self.redact_message(reason.field), message=self.redact_message(reason.message))

    def pseudonym(self, user: str) -> str:
        """The name of `user` in data/: the id itself where `privacy.pseudonymise` is off."""
        return self._user(user) if self._user else user

    def _interaction(self, row: Interaction) -> Interaction:
        contexts = row.contexts
        if self._contexts and contexts:
            redacted = tuple(_with(context, text=self.redact(context.text)) for context in contexts)
            contexts = contexts if all(a is b for a, b in zip(contexts, redacted, strict=True)) else redacted
        return _with(row, question=self.redact(row.question), answer=self.redact(row.answer), contexts=contexts)

    def _feedback(self, row: Thumb) -> Thumb:
        user = self.pseudonym(row.user) if row.user else None
        return _with(row, user=user, comment=self._maybe(row.comment))

    def _review(self, row: Review) -> Review:
        reviewer = self._reviewer(row.reviewer) if self._reviewer else row.reviewer
        return _with(row, reviewer=reviewer, ideal_answer=self._maybe(row.ideal_answer))

    def _maybe(self, text: str | None) -> str | None:
        return None if text is None else self.redact(text)


def _with(row: R, **values: str | tuple[Context, ...] | None) -> R:
    """`row` with these values; the same object where it has them already."""
    if all(getattr(row, name) is value or getattr(row, name) == value for name, value in values.items()):
        return row
    return row.model_copy(update=values)
