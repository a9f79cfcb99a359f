"""Keep personal data out of data/: redaction and pseudonyms, between reading a row and deciding on it.

Notes:

* Question, answer, comment and ideal answer are redacted. Contexts are text of the knowledge base, which is not secret
  and must stay as the base model read it; `privacy.redact_contexts` is for other retrieved content.
* Redaction comes before deduplication, so that a row ingested again is a duplicate, and pending, rejected or reported
  rows contain no more than an accepted row. Of a rejected row that breaks its contract nothing is stored: a user's id
  in it cannot be told from other text.
* Reviewers are accountable for their reviews, so their names stay unless `privacy.pseudonymize_reviewers` is set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar, cast

from abstain.config.params import PrivacyParams
from abstain.config.settings import Settings
from abstain.core.contracts import Context, Interaction, Question, Review, Row, Thumb
from abstain.core.markdown import to_single_line
from abstain.core.reasons import Reason
from abstain.ingest.parsing import ParsedRow
from abstain.ingest.privacy.pseudonyms import Pseudonyms, load_user_key
from abstain.ingest.privacy.redaction import Redactor
from abstain.ingest.privacy.search_spans import OVERLAP

MAX_MESSAGE_CHARACTERS = 1_000
"""Maximum length of a reason's message or of an error: a field's name may be as long as a row."""

R = TypeVar("R", bound=Row)
ReplaceText = Callable[[str], str]


class Privacy:
    """Redacts and pseudonymizes each incoming row; made by `from_params` or `noop`.

    Args:
        redactor: Redacts texts; None leaves them.
        redact_contexts: Whether contexts are redacted, too.
        replace_user: Returns the pseudonym of a user; None keeps the id.
        replace_reviewer: Returns the pseudonym of a reviewer; None keeps the name.
    """

    def __init__(
        self,
        redactor: Redactor | None = None,
        *,
        redact_contexts: bool = False,
        replace_user: ReplaceText | None = None,
        replace_reviewer: ReplaceText | None = None,
    ) -> None:
        self._redactor, self._redact_contexts = redactor, redact_contexts
        self._replace_user, self._replace_reviewer = replace_user, replace_reviewer
        self._counts: Counter[str] = Counter()
        self._is_noop = redactor is None and replace_user is None and replace_reviewer is None

    @classmethod
    def from_params(cls, params: PrivacyParams, settings: Settings) -> Privacy:
        """Make the privacy rules of `params`; creates the pseudonym key if there is none.

        Args:
            params: Privacy parameters.
            settings: Settings with the pseudonym key.

        Returns:
            The rules.

        Raises:
            AbstainError: An entity is unknown or can never be found, a spaCy pipeline is missing, or the key is
                missing, too short or damaged.
        """
        has_pseudonyms = params.pseudonymize or params.pseudonymize_reviewers
        pseudonyms = Pseudonyms(load_user_key(settings)) if has_pseudonyms else None
        return cls(
            Redactor(params) if params.redact else None,
            redact_contexts=params.redact_contexts,
            replace_user=pseudonyms.pseudonymize_user if pseudonyms and params.pseudonymize else None,
            replace_reviewer=pseudonyms.pseudonymize_reviewer if pseudonyms and params.pseudonymize_reviewers else None,
        )

    @classmethod
    def noop(cls) -> Privacy:
        """Make rules that leave every row as it came."""
        return cls()

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of removed entities of each kind so far, the most frequent first; never the texts."""
        return dict(sorted(self._counts.items(), key=lambda item: (-item[1], item[0])))

    def apply(self, row: ParsedRow) -> ParsedRow:
        """Return `row` with its contents redacted; documents, `raw` and rows without contents are unchanged."""
        if self._is_noop:
            return row
        interaction = self._redact_interaction(row.interaction) if row.interaction else None
        thumb = self._redact_thumb(row.thumb) if row.thumb else None
        review = self._redact_review(row.review) if row.review else None
        if interaction is row.interaction and thumb is row.thumb and review is row.review:
            return row
        return replace(row, interaction=interaction, thumb=thumb, review=review)

    def redact_row(self, row: R) -> R:
        """Return an interaction, a question, a thumb or a review as `apply` would redact it."""
        if isinstance(row, Interaction):
            return cast(R, self._redact_interaction(row))
        if isinstance(row, Question):
            contexts = self._redact_chunks(row.contexts)
            return cast(R, _replace_values(row, question=self.redact(row.question), contexts=contexts))
        if isinstance(row, Thumb):
            return cast(R, self._redact_thumb(row))
        assert isinstance(row, Review)
        return cast(R, self._redact_review(row))

    def redact(self, text: str) -> str:
        """Return `text` without the entities, which are counted."""
        if self._redactor is None:
            return text
        redacted, removed = self._redactor.redact(text)
        self._counts.update(removed)
        return redacted

    def redact_message(self, message: str) -> str:
        """Redact a message, which may quote a text that a person typed, so that it may be reported.

        Args:
            message: The message. Only the part of a long one that may be reported is redacted.

        Returns:
            The message without entities, printable, on one line.
        """
        redacted = self.redact(message[: MAX_MESSAGE_CHARACTERS + OVERLAP])
        if len(message) > MAX_MESSAGE_CHARACTERS + OVERLAP:
            redacted = redacted[:-OVERLAP]  # an entity at the end may have been cut in two, and so not recognized
        elif len(redacted := to_single_line(redacted)) <= MAX_MESSAGE_CHARACTERS:
            return redacted
        return f"{to_single_line(redacted)[:MAX_MESSAGE_CHARACTERS]}…"

    def redact_reason(self, reason: Reason) -> Reason:
        """Return `reason` with its field and message as they may be reported."""
        return replace(reason, field=self.redact_message(reason.field), message=self.redact_message(reason.message))

    def get_pseudonym(self, user: str) -> str:
        """Return the name of `user` in data/: the id itself if `privacy.pseudonymize` is off."""
        return self._replace_user(user) if self._replace_user else user

    def _redact_interaction(self, row: Interaction) -> Interaction:
        contexts = self._redact_chunks(row.contexts)
        return _replace_values(
            row, question=self.redact(row.question), answer=self.redact(row.answer), contexts=contexts
        )

    def _redact_chunks(self, contexts: tuple[Context, ...]) -> tuple[Context, ...]:
        if not self._redact_contexts:
            return contexts
        redacted = tuple(_replace_values(context, text=self.redact(context.text)) for context in contexts)
        return contexts if all(a is b for a, b in zip(contexts, redacted, strict=True)) else redacted

    def _redact_thumb(self, row: Thumb) -> Thumb:
        user = self.get_pseudonym(row.user) if row.user else None
        return _replace_values(row, user=user, comment=self._redact_optional(row.comment))

    def _redact_review(self, row: Review) -> Review:
        reviewer = self._replace_reviewer(row.reviewer) if self._replace_reviewer else row.reviewer
        return _replace_values(row, reviewer=reviewer, ideal_answer=self._redact_optional(row.ideal_answer))

    def _redact_optional(self, text: str | None) -> str | None:
        return None if text is None else self.redact(text)


def _replace_values(row: R, **values: str | tuple[Context, ...] | None) -> R:
    """Return `row` with these values; the same object if it has them already."""
    if all(getattr(row, name) is value or getattr(row, name) == value for name, value in values.items()):
        return row
    return row.model_copy(update=values)
