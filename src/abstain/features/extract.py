"""From interactions to the probe's input: compute what the cache lacks, assemble in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from abstain.contracts import Interaction
from abstain.features.cache import FeatureCache, Space, pass_key
from abstain.llm.engine import Engine, States
from abstain.llm.layout import load_layout
from abstain.llm.loading import LoadedModel, choose_device, choose_dtype, load, resolve
from abstain.params import LLMParams
from abstain.settings import Settings

SHARD_ROWS = 64

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class FeatureSource:
    """What the probe listens to, resolved on this machine: the ask, where its results are kept, how to run it."""

    params: LLMParams
    settings: Settings

    def space(self) -> Space:
        """The cache space of these parameters. Raises `AbstainError` where model or layout is not to be found."""
        dtype = choose_dtype(self.settings, choose_device(self.settings))
        return Space(
            model=str(resolve(self.params.model, self.settings)),
            layout=load_layout(self.params.layout).digest,
            layer=self.params.layer,
            site=self.params.site,
            dtype=str(dtype).removeprefix("torch."),
        )

    def cache(self) -> FeatureCache:
        return FeatureCache(self.settings.features, self.space())

    def keys(self, interactions: Sequence[Interaction]) -> list[str]:
        layout = load_layout(self.params.layout)
        return [pass_key(layout.render_interaction(interaction)) for interaction in interactions]

    def missing(self, interactions: Sequence[Interaction]) -> int:
        """How many of `interactions` would need a forward pass."""
        return len(self.cache().missing(self.keys(interactions)))

    def load_model(self) -> LoadedModel:
        device = choose_device(self.settings)
        return load(resolve(self.params.model, self.settings), device, choose_dtype(self.settings, device))

    def states(
        self, interactions: Sequence[Interaction], progress: Progress = lambda done, total: None
    ) -> list[Tensor]:
        """S_in of every interaction (eq. 5), in order: states of answer and EOS tokens, each (L + 1, d).

        Only what the cache lacks is computed, and is written shard by shard: a killed run repeats at most
        one shard. The base model is not even loaded where nothing is missing.
        """
        cache = self.cache()
        keys = self.keys(interactions)
        missing = set(cache.missing(keys))
        if missing:
            layout = load_layout(self.params.layout)
            todo = {
                key: (interaction.interaction_id, layout.render_interaction(interaction))
                for key, interaction in zip(keys, interactions, strict=True)
                if key in missing
            }
            self._compute(cache, todo, progress)
        return cache.get(keys)

    def _compute(self, cache: FeatureCache, todo: dict[str, tuple[str, tuple]], progress: Progress) -> None:
        engine = Engine(self.load_model(), self.settings.batch_tokens)
        ask = States(layers=(self.params.layer,), site=self.params.site)
        names: dict[str, str] = {}  # an error names an interaction by its id; a text that shares its id, by its key too
        for key, (name, _) in todo.items():
            names[f"{name} ({key[:8]})" if name in names else name] = key
        passes = {name: todo[key][1] for name, key in names.items()}
        shard: dict[str, Tensor] = {}
        progress(0, len(todo))
        for done, (name, states) in enumerate(engine.states(passes, ask), start=1):
            shard[names[name]] = states[0]
            if len(shard) == SHARD_ROWS or done == len(todo):
                cache.put(shard)
                shard = {}
                progress(done, len(todo))


def pack(states: Sequence[Tensor]) -> dict[str, Tensor]:
    """Ragged rows as two tensors: `states` (sum of lengths, d) and `offsets` (rows + 1)."""
    lengths = torch.tensor([0, *(len(row) for row in states)])
    return {"states": torch.cat(list(states)), "offsets": lengths.cumsum(0)}


def unpack(packed: dict[str, Tensor]) -> list[Tensor]:
    """The inverse of `pack`, in float32."""
    offsets = packed["offsets"].tolist()
    return [packed["states"][a:b].float() for a, b in pairwise(offsets)]
