import math
from collections.abc import Sequence

import pandas as pd
import pytest
import torch
from torch import Tensor

from abstain.llm.features.nll import SEGMENTS, TokenStatsBySegment, compute_nll_features

NAN = float("nan")


def tokens(*nll: float, entropy: float = 0.5) -> Tensor:
    """(tokens, 2): these NLLs, and `entropy` times the token's number."""
    return torch.tensor([[value, entropy * at] for at, value in enumerate(nll)], dtype=torch.float32).reshape(-1, 2)


def found(**segments: Tensor | None) -> TokenStatsBySegment:
    plain: dict[str, Tensor | None] = {name: tokens(1.0, 2.0) for name in SEGMENTS}
    return plain | segments


NORMAL = found(prompt=tokens(NAN, 1.0, 2.0), instruction=tokens(NAN, 1.0), output=tokens(4.0, 1.0, 1.0, 2.0))
BASELINE: TokenStatsBySegment = {
    name: value for name, value in found(output=tokens(5.0, 1.0, 0.0, 4.0)).items() if name != "context"
}
PERTURBED = found(output=tokens(6.0, 0.0, 1.0, 2.0), context=tokens(3.0, 7.0))


def test_nll_features_equal_statistics_by_pandas() -> None:
    """By pandas; the first token of a pass, which nothing precedes, is left out."""
    row = compute_nll_features(NORMAL, BASELINE, [PERTURBED])
    for condition, segments in (("N", NORMAL), ("B", BASELINE), ("P", PERTURBED)):
        for segment, found in segments.items():
            nll, entropy = pd.DataFrame(found.numpy()).dropna().to_numpy(float).T if found is not None else ([], [])
            names = ["mean", "std", "min", "median", "q90", "max", "sum", "first", "last"]
            assert [row[f"{condition}.{segment}.nll_{name}"] for name in names] == pytest.approx(by_pandas(nll))
            of_entropy = by_pandas(entropy)
            ours = [row[f"{condition}.{segment}.entropy_{name}"] for name in ("mean", "max")]
            assert ours == pytest.approx([of_entropy[0], of_entropy[5]])
    gaps = {"N-B": [-1, 0, 1, -2], "P-N": [2, -1, 0, 0], "P-B": [1, -1, 1, -2]}
    for pair, gap in gaps.items():
        ours = [row[f"{pair}.output.nll_{name}"] for name in ("mean", "std", "min", "max")]
        assert ours == pytest.approx([by_pandas(gap)[at] for at in (0, 1, 2, 5)])
    assert len(row) == 3 * 5 * (9 + 2) + 3 * 2 * 4, "conditions, segments, statistics; pairs, segments, statistics"


def by_pandas(tokens: Sequence[float]) -> list[float]:
    of = pd.Series(tokens, dtype=float)
    first, last = of.iloc[0], of.iloc[-1]
    return [of.mean(), of.std(ddof=0), of.min(), of.median(), of.quantile(0.9), of.max(), of.sum(), first, last]


def test_nll_features_unread_row_is_nan() -> None:
    unread: TokenStatsBySegment = dict.fromkeys(SEGMENTS)
    row = compute_nll_features(unread, BASELINE, [PERTURBED, PERTURBED])
    assert row.keys() == compute_nll_features(NORMAL, BASELINE, [PERTURBED, PERTURBED]).keys()
    assert all(math.isnan(value) for value in row.values())
    assert not math.isnan(compute_nll_features(NORMAL, BASELINE, [unread])["N.output.nll_mean"])


def test_nll_features_missing_segment_is_nan() -> None:
    """The context under B_c, an empty segment, one of a single first token, a prompt that could not be read."""
    row = compute_nll_features(NORMAL | {"question": tokens()}, BASELINE, [dict.fromkeys(SEGMENTS)])
    missing = {name for name, value in row.items() if math.isnan(value)}
    assert {name for name in row if name.startswith(("B.context", "N.question", "P", "N-B.question"))} == missing
    shorter = compute_nll_features(NORMAL, BASELINE, [found(output=tokens(1.0))])
    assert math.isnan(shorter["P-N.output.nll_mean"]), "the tokens are others"
    first = compute_nll_features(NORMAL | {"instruction": tokens(NAN)}, BASELINE, [PERTURBED])
    assert {name for name, value in first.items() if math.isnan(value)} == {
        name for name in row if name.startswith(("N.instruction", "B.context"))
    }


def test_nll_features_of_copies_are_mean_and_spread() -> None:
    copies = [found(output=tokens(value, value)) for value in (1.0, 2.0, 6.0)]
    both = found(output=tokens(1.0, 3.0))
    row, single = compute_nll_features(both, both, copies), compute_nll_features(both, both, copies[:1])
    assert row["P.output.nll_mean"] == 3.0 and row["Ps.output.nll_mean"] == pytest.approx(math.sqrt(14 / 3))
    assert row["P-N.output.nll_mean"] == 1.0 and row["Ps-N.output.nll_mean"] == row["Ps-B.output.nll_mean"]
    assert row["Ps.context.nll_sum"] == 0.0
    assert {name for name in row if name not in single} == {f"Ps{name[1:]}" for name in single if name.startswith("P")}
    with_none = compute_nll_features(both, both, [copies[0], dict.fromkeys(SEGMENTS)])
    assert math.isnan(with_none["P.output.nll_mean"]) and math.isnan(with_none["Ps.output.nll_mean"])
