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

Prompt = Literal["answered", "asked_after", "yes_score", "probability"]
"""`answered`: the layout of `llm.layout`, up to the EOS after the answer; `asked_after`: continues it with the
question whether the answer is correct; `yes_score`, `probability`: that paper's own prompts (engine/questions)."""
WHOLE = {"yes_score": "yes-score-v1", "probability": "probability-v1"}


@dataclass(frozen=True)
class FeatureRequest:
    """`ask` about `prompt` with the best `chunks` retrieved chunks in it; None: with all, 0: with none (B_c)."""

    ask: Operation
    prompt: Prompt = "answered"
    chunks: int | None = None

    @property
    def generated(self) -> int:
        """Tokens that the window must have room for after the prompt."""
        return self.ask.max_new_tokens + 1 if isinstance(self.ask, Generate) else 0

    def contexts(self, asked: Question | Interaction) -> list[str]:
        """The texts of the chunks that are in the prompt, best first."""
        return [context.text for context in asked.contexts[: self.chunks]]

    def render(self, layout: str, question: str, contexts: list[str], answer: str | None) -> PromptSegments:
        """The prompt as segments. Raises `AbstainError` where no follow-up question exists for `layout`."""
        if self.prompt in WHOLE:
            return load_layout(WHOLE[self.prompt], "questions").render(question, contexts, answer)
        pass_ = load_layout(layout).render(question, contexts, answer)
        if self.prompt == "asked_after":
            pass_ += load_layout(f"after-{layout}", "questions").render(question, contexts, answer)
        return pass_
