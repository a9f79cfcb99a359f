"""A feature request about an answered question: a request kind and its prompt.

Notes:

* Feature requests are values: scorers name those that they need, equal ones are merged, and all are computed together,
  sharing common prefixes of their prompts (llm/engine/planner.py).
* The prompt is cut to the window here: every request whose question does not fit loses chunks in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from abstain.core.contracts import Interaction, Question
from abstain.llm.engine.prompts import PromptSegments, load_layout
from abstain.llm.engine.requests import Generate, Operation

PromptKind = Literal["answered", "asked_after", "yes_score", "probability"]
"""`answered`: the layout of `llm.layout`, up to the EOS after the answer; `asked_after`: continues it with the
question whether the answer is correct; `yes_score`, `probability`: that paper's own prompts (engine/questions)."""
QUESTION_LAYOUTS = {"yes_score": "yes-score-v1", "probability": "probability-v1"}


@dataclass(frozen=True)
class FeatureRequest:
    """`operation` about `prompt_kind` with the best `chunks` retrieved chunks in it; None: with all, 0: with none (B_c)."""

    operation: Operation
    prompt_kind: PromptKind = "answered"
    chunks: int | None = None

    @property
    def reserved_tokens(self) -> int:
        """Tokens that the window must have room for after the prompt."""
        return self.operation.max_new_tokens + 1 if isinstance(self.operation, Generate) else 0

    def contexts(self, asked: Question | Interaction) -> list[str]:
        """The texts of the chunks that are in the prompt, best first."""
        return [context.text for context in asked.contexts[: self.chunks]]

    def render(self, layout: str, question: str, contexts: list[str], answer: str | None) -> PromptSegments:
        """The prompt as segments. Raises `AbstainError` where no follow-up question exists for `layout`."""
        if self.prompt_kind in QUESTION_LAYOUTS:
            return load_layout(QUESTION_LAYOUTS[self.prompt_kind], "questions").render(question, contexts, answer)
        pass_ = load_layout(layout).render(question, contexts, answer)
        if self.prompt_kind == "asked_after":
            pass_ += load_layout(f"after-{layout}", "questions").render(question, contexts, answer)
        return pass_
