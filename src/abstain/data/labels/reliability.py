"""Reliability of thumbs: how well users' thumbs agree with reviewers' verdicts on the same answers. Columnar and pure.

Notes:

* A reviewed answer stands for 1/inclusion_probability others, because reviews are sampled unevenly, disliked answers
  first (where the probability is unknown, for itself). The loss of precision is in the effective sample size (Kish), on
  which intervals and `labels.min_agreement` are based.
* The evidence of a thumb is a log-likelihood ratio, separately for up and down, pooled over all users. A user's own
  record shifts it by the number of their reviewed thumbs (`labels.user_shrinkage`); anonymous thumbs use the pooled
  estimate.
* `labels.thumb_model` selects the source of a user's record: `agreement` uses reviewed answers alone, `dawid_skene`
  (crowd-kit) also unreviewed thumbs. The first is the default: the second mistakes a user who asks easy questions for
  one who likes everything.
* The weight of a label is the share of the prior doubt that the thumbs removed, (p - prior) / (1 - prior), like
  Cohen's kappa: 0 where thumbs are uninformative, or where the opposite label stays likelier in spite of them.

Reference: A. P. Dawid and A. M. Skene, Maximum likelihood estimation of observer error-rates using the EM algorithm,
JRSS C 28 (1979).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import betaincinv, expit, logit

from abstain.config.params import LabelParams

DOWN, UP = 0, 1
DIGITS = 3
LEVEL = 0.95


@dataclass(frozen=True)
class Share:
    """A weighted share, off 0 and 1 by half an answer (Jeffreys' prior), its interval at `LEVEL` and effective n."""

    value: float
    low: float
    high: float
    n_eff: float

    @classmethod
    def from_votes(cls, hit: np.ndarray, weight: np.ndarray, answer: np.ndarray) -> Share:
        """The share of votes that `hit`; votes on one `answer` count as one, because they judge the same answer."""
        drawn = pd.Series(weight).groupby(answer).sum().to_numpy()
        effective = float(drawn.sum() ** 2 / (drawn**2).sum()) if len(drawn) else 0.0
        hits = effective * float(np.average(hit, weights=weight)) if len(drawn) else 0.0
        low, high = betaincinv(hits + 0.5, effective - hits + 0.5, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return cls((hits + 0.5) / (effective + 1), float(low), float(high), effective)

    def complement(self) -> Share:
        """The share of those that did not."""
        return Share(1 - self.value, 1 - self.high, 1 - self.low, self.n_eff)


@dataclass(frozen=True)
class Agreement:
    """Thumbs against verdicts.

    Attributes:
        votes: (2, 2) counts, thumb (down, up) by verdict (incorrect, correct).
        prior: correct answers among those with thumbs.
        correct_given_thumb: by thumb (down, up), the correct answers among those that got it.
        up_given_verdict: by verdict (incorrect, correct), the ups among those that got it.
    """

    votes: np.ndarray
    prior: Share
    correct_given_thumb: tuple[Share, Share]
    up_given_verdict: tuple[Share, Share]

    @property
    def evidence(self) -> np.ndarray:
        """(2,) log P(thumb | correct) / P(thumb | incorrect) of a down and an up."""
        incorrect, correct = self.up_given_verdict[0].value, self.up_given_verdict[1].value
        return np.asarray(np.log([(1 - correct) / (1 - incorrect), correct / incorrect]))

    @property
    def n_eff_by_class(self) -> tuple[float, float]:
        """The effective numbers of incorrect and correct answers that have both."""
        return self.up_given_verdict[0].n_eff, self.up_given_verdict[1].n_eff


@dataclass(frozen=True)
class Reliability:
    """The evidence of each user's thumbs: `evidence` is (users + 1, 2), row 0 pooled, columns down and up."""

    prior: float
    evidence: np.ndarray

    def posterior(self, votes: pd.DataFrame, answers: int) -> np.ndarray:
        """(answers,) the probability that each is correct, given its votes (row, user, up)."""
        return np.asarray(expit(logit(self.prior) + np.bincount(votes["row"], self.get_vote_evidence(votes), answers)))

    def get_vote_evidence(self, votes: pd.DataFrame) -> np.ndarray:
        """(votes,) the evidence of each vote (row, user, up)."""
        return np.asarray(self.evidence[votes["user"], votes["up"].astype(int)])

    def labels(self, votes: pd.DataFrame, answers: int, params: LabelParams) -> pd.DataFrame:
        """(answers,) the label by votes, true where correct, and its weight, 0 to `labels.max_thumb_weight`."""
        probability = self.posterior(votes, answers)
        label = probability > 0.5
        sure = np.where(label, probability, 1 - probability)
        before = np.where(label, self.prior, 1 - self.prior)
        removed = np.clip((sure - before) / (1 - before), 0, 1)
        return pd.DataFrame({"label": label, "weight": np.round(params.max_thumb_weight * removed, DIGITS)})

    def compute_user_reliability(self, votes: pd.DataFrame) -> np.ndarray:
        """The expected share of each known user's thumbs in `votes` that agree with a reviewer."""
        correct = expit(logit(self.prior) + self.evidence)
        agrees = np.stack([1 - correct[:, DOWN], correct[:, UP]], axis=1)
        known = votes[votes["user"] > 0]
        share = pd.Series(agrees[known["user"], known["up"].astype(int)])
        return np.asarray(share.groupby(known["user"].to_numpy()).mean())


def measure_agreement(votes: pd.DataFrame, verdicts: pd.DataFrame) -> Agreement:
    """Thumbs against verdicts where there are both.

    Args:
        votes: row, user, up.
        verdicts: by row: label, inclusion_probability.
    """
    both = _reviewed(votes, verdicts)
    answer, up, label, weight = (both[name].to_numpy() for name in ("row", "up", "label", "weight"))
    first = ~both.duplicated("row").to_numpy()

    def share(hit: np.ndarray, among: np.ndarray) -> Share:
        return Share.from_votes(hit[among], weight[among], answer[among])

    return Agreement(
        votes=np.bincount(2 * up + label, minlength=4).reshape(2, 2),
        prior=share(label, first),
        correct_given_thumb=(share(label, ~up), share(label, up)),
        up_given_verdict=(share(up, ~label), share(up, label)),
    )


def estimate_reliability(
    votes: pd.DataFrame, verdicts: pd.DataFrame, pooled: Agreement, users: int, params: LabelParams
) -> Reliability | None:
    """The reliability of thumbs by training votes and verdicts; None if fewer than `labels.min_agreement` have both.

    Args:
        pool: `measure_agreement` of these votes and verdicts.
        users: the number of known users, in these rows or others, numbered from 1.
    """
    if min(pooled.n_eff_by_class) < params.min_agreement:
        return None
    model = _by_dawid_skene if params.thumb_model == "dawid_skene" else _by_agreement
    evidence = model(votes, verdicts, users, pooled, params.user_shrinkage)
    evidence[0] = pooled.evidence
    return Reliability(pooled.prior.value, evidence)


def _reviewed(votes: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """The votes on reviewed answers, with the verdict and the number of answers that each stands for."""
    both = votes.join(verdicts[["label", "inclusion_probability"]], on="row", how="inner")
    return both.assign(label=both["label"].astype(bool), weight=1 / both["inclusion_probability"].fillna(1.0))


def _by_agreement(
    votes: pd.DataFrame, verdicts: pd.DataFrame, users: int, pool: Agreement, shrinkage: float
) -> np.ndarray:
    """The pooled evidence, shifted by how often a reviewer judged the user's liked and disliked answers correct."""
    both = _reviewed(votes, verdicts)
    evidence = np.tile(pool.evidence, (users + 1, 1))
    for thumb in (DOWN, UP):
        own = both[both["up"] == bool(thumb)]
        weight = own["weight"].to_numpy()
        counted = weight * (weight.sum() / (weight**2).sum()) if len(own) else weight
        correct = np.bincount(own["user"], counted * own["label"].to_numpy(), users + 1)
        pooled = pool.correct_given_thumb[thumb].value
        share = (correct + shrinkage * pooled) / (np.bincount(own["user"], counted, users + 1) + shrinkage)
        evidence[:, thumb] += logit(share) - logit(pooled)
    return evidence


def _by_dawid_skene(
    votes: pd.DataFrame, verdicts: pd.DataFrame, users: int, pool: Agreement, shrinkage: float
) -> np.ndarray:
    """Error rates by expectation-maximisation over all votes, verdicts given, then shrunk towards the pooled ones.

    Only users with `shrinkage` votes or more have their own rates: fewer cannot be distinguished from chance.
    """
    if votes["up"].nunique() < 2:
        return np.tile(pool.evidence, (users + 1, 1))
    from crowdkit.aggregation import DawidSkene  # some seconds

    user, up = votes["user"].to_numpy(), votes["up"].to_numpy()
    worker = np.where((np.bincount(user, minlength=users + 1) >= shrinkage)[user], user, 0)
    up_incorrect, up_correct = (share.value for share in pool.up_given_verdict)
    workers = np.unique(worker)
    start = pd.DataFrame(
        np.tile([[1 - up_incorrect, 1 - up_correct], [up_incorrect, up_correct]], (len(workers), 1)),
        index=pd.MultiIndex.from_product([workers, [DOWN, UP]], names=["worker", "label"]),
        columns=[0, 1],
    )
    model = DawidSkene(initial_error_strategy="assign").fit(
        pd.DataFrame({"task": votes["row"].to_numpy(), "worker": worker, "label": up.astype(int)}),
        verdicts["label"].astype(int),
        start,
    )
    assert model.probas_ is not None
    correct = model.probas_.loc[votes["row"], 1].to_numpy()
    rates = [
        (np.bincount(user, part * up, users + 1) + shrinkage * rate) / (np.bincount(user, part, users + 1) + shrinkage)
        for part, rate in ((1 - correct, up_incorrect), (correct, up_correct))
    ]
    return np.asarray(np.log(np.stack([(1 - rates[1]) / (1 - rates[0]), rates[1] / rates[0]], axis=1)))
