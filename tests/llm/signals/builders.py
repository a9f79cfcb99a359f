"""Answered questions, and tiny encoders with random weights."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    BertConfig,
    PreTrainedTokenizerFast,
)

from abstain.core.contracts import Context, Interaction
from abstain.core.labels import Labels
from abstain.llm.signals.base import FeatureBatch
from tests import factories

WINDOW = 64
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
HEADS = {"classify": AutoModelForSequenceClassification, "answer": AutoModelForQuestionAnswering}
TEXTS = (
    "The annual fee of the gold card is 5 euros.",
    "A lost card is blocked at once: call the hotline, day or night.",
)
LONG = " ".join(f"Line {n} says that {word} is not what it was." for n, word in enumerate("abcdefghijklmn"))
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def interaction(
    answer: str = "5 euros", contexts: Sequence[str] = TEXTS, question: str = "What is the fee?", name: str = "i-1"
) -> Interaction:
    given = tuple(Context(chunk_id=f"doc#{at}", text=text) for at, text in enumerate(contexts))
    return factories.interaction(name, question=question, answer=answer, contexts=given)


def numbered(n: int, **changes: Any) -> Interaction:
    """An answered question; the lengths of its context and answer depend on `n`."""
    one = interaction("yes " * (n % 5 + 1), ["c" * (7 * n % 40 + 1)], f"Question {n}?", f"i-{n}")
    return one.model_copy(update=changes)


def unread(*interactions: Interaction) -> FeatureBatch:
    return FeatureBatch(interactions, {})


def labels(correct: Sequence[int], weight: Sequence[float] | None = None) -> Labels:
    weights = np.ones(len(correct)) if weight is None else np.array(weight, float)
    return Labels(np.array(correct, float), weights, np.arange(len(correct)))


@cache
def word_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer like BERT's, with the words of two sentences and single letters.

    It is not trained: what a trainer learns differs from one process to the next.
    """
    letters = list("abcdefghijklmnopqrstuvwxyz0123456789.,:?")
    words = sorted({word for text in TEXTS for word in re.findall(r"\w{2,}", text.lower())})
    pieces = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters), *words]
    backend = Tokenizer(models.WordPiece({piece: at for at, piece in enumerate(pieces)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(cleanup=False)
    places = [(token, SPECIAL.index(token)) for token in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=places
    )
    names = {f"{token[1:-1].lower()}_token": token for token in SPECIAL}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, model_input_names=["input_ids", "token_type_ids", "attention_mask"], **names
    )


@cache
def plain_encoder(folder: Path, head: str) -> Any:
    return HEADS[head].from_pretrained(folder).eval()


def plain_logits(folder: Path, head: str, inputs: Mapping[str, Any]) -> list[Tensor]:
    """The logits of one row by transformers alone; of a model to `answer`, those of start and end."""
    with torch.inference_mode():
        out = plain_encoder(folder, head)(**{name: torch.tensor([ids]) for name, ids in inputs.items()})
    return [out[name][0] for name in ("logits", "start_logits", "end_logits") if name in out]


def save_encoder(folder: Path, head: str, seed: int = 0, **config: Any) -> Path:
    """Save a two-layer encoder with a head to `classify` pairs or to `answer` questions."""
    # The range is large enough for texts to differ visibly.
    sizes = SIZES | {"vocab_size": 300, "initializer_range": 0.3, "max_position_embeddings": WINDOW}
    torch.manual_seed(seed)
    HEADS[head].from_config(BertConfig(**(sizes | config))).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder
