"""Feature request about an answered question: an operation and its prompt.

Notes:

* Feature requests are values. Scorers name those that they need, equal ones are merged, and all are computed together,
  sharing common prefixes of their prompts (llm/engine/planner.py).
* The prompt is cut to the context length here, so every request whose question does not fit loses chunks in the same
  way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from abstain.core.contracts import Interaction, Question
from abstain.llm.engine.prompts import Layout, PromptSegments, load_layout
from abstain.llm.engine.requests import Generate, Operation

PromptKind = Literal["answered", "asked_after", "yes_score", "probability"]
"""`answered`: the layout of `llm.layout`, up to the EOS after the answer; `asked_after`: continues it with the
question whether the answer is correct; `yes_score`, `probability`: that paper's own prompts (engine/questions)."""
QUESTION_LAYOUTS = {"yes_score": "yes-score-v1", "probability": "probability-v1"}


@dataclass(frozen=True)
class FeatureRequest:
    """One feature of an answered question: an operation on a prompt.

    Attributes:
        operation: Computation of the base model, such as `HiddenStates` or `NLL`.
        prompt_kind: Which prompt it reads; "answered" is the layout of `llm.layout` with question, contexts and answer.
        chunks: Number of best retrieved chunks in the prompt; None for all, 0 for none (B_c).
    """

    operation: Operation
    prompt_kind: PromptKind = "answered"
    chunks: int | None = None

    @property
    def reserved_tokens(self) -> int:
        """Number of tokens that the context length must leave free after the prompt."""
        return self.operation.max_new_tokens + 1 if isinstance(self.operation, Generate) else 0

    def select_contexts(self, question: Question | Interaction) -> list[str]:
        """Return the texts of the chunks of `question` that are in the prompt, best first."""
        return [context.text for context in question.contexts[: self.chunks]]

    def render(
        self,
        layout: str,
        question: str,
        contexts: list[str],
        answer: str | None,
        load: Callable[..., Layout] = load_layout,
    ) -> PromptSegments:
        """Build the prompt as segments.

        Args:
            layout: Name of the prompt layout.
            question: Text of the question.
            contexts: Texts of the chunks, best first.
            answer: Text of the answer; None if there is none yet.
            load: Loads a layout or question by its name and folder.

        Returns:
            The segments of the prompt.

        Raises:
            AbstainError: No follow-up question exists for `layout`.
        """
        if self.prompt_kind in QUESTION_LAYOUTS:
            return load(QUESTION_LAYOUTS[self.prompt_kind], "questions").render(question, contexts, answer)
        prompt = load(layout).render(question, contexts, answer)
        if self.prompt_kind == "asked_after":
            prompt += load(f"after-{layout}", "questions").render(question, contexts, answer)
        return prompt
