"""Reliability of thumbs: how well thumbs agree with reviews of the same answers. Columnar and pure.

Notes:

* A reviewed answer represents 1 / inclusion_probability answers, because reviews are sampled unevenly, disliked answers
  first. If the probability is unknown, it represents itself. The loss of precision is in the effective sample size
  (Kish), on which intervals and `labels.min_agreement` are based.
* The evidence of a thumb is a log-likelihood ratio, separately for up and down, pooled over all users. A user's own
  record shifts it by the number of their reviewed thumbs (`labels.user_shrinkage`). Anonymous thumbs use the pooled
  estimate.
* `labels.thumb_model` selects the source of a user's record: `agreement` uses reviewed answers only, `dawid_skene`
  (crowd-kit) also thumbs on unreviewed answers. The first is the default, because the second mistakes a user who asks
  easy questions for one who likes everything.
* The weight of a label is the share of the prior doubt that the thumbs removed, (p - prior) / (1 - prior), like
  Cohen's kappa: 0 if thumbs are uninformative, or if the opposite label stays more likely in spite of them.

Reference: A. P. Dawid and A. M. Skene, Maximum likelihood estimation of observer error-rates using the EM algorithm,
JRSS C 28 (1979).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pandas as pd
from pydantic import PlainSerializer
from scipy.special import betaincinv, expit, logit

from abstain.config.params import LabelParams

DOWN, UP = 0, 1
DIGITS = 3
INTERVAL_LEVEL = 0.95

Rounded = Annotated[float, PlainSerializer(lambda value: round(float(value), DIGITS))]
"""A number that is rounded in JSON."""


@dataclass(frozen=True)
class Share:
    """A weighted share with its interval, kept off 0 and 1 by half an answer (Jeffreys' prior).

    Attributes:
        value: The share, (hits + 0.5) / (n_eff + 1).
        low: Lower end of the interval at `INTERVAL_LEVEL`.
        high: Upper end.
        n_eff: Effective sample size.
    """

    value: Rounded
    low: Rounded
    high: Rounded
    n_eff: Rounded

    @classmethod
    def from_votes(cls, is_hit: np.ndarray, weight: np.ndarray, answer: np.ndarray) -> Share:
        """Estimate the share of votes with a property.

        Args:
            is_hit: (votes,) whether a vote has the property.
            weight: (votes,) sampling weights.
            answer: (votes,) row of the rated answer. Votes on one answer count as one for the sample size, because
                their labels are the same.

        Returns:
            The share.
        """
        answer_weights = pd.Series(weight).groupby(answer).sum().to_numpy()
        n_eff = float(answer_weights.sum() ** 2 / (answer_weights**2).sum()) if len(answer_weights) else 0.0
        hits = n_eff * float(np.average(is_hit, weights=weight)) if len(answer_weights) else 0.0
        low, high = betaincinv(hits + 0.5, n_eff - hits + 0.5, [(1 - INTERVAL_LEVEL) / 2, (1 + INTERVAL_LEVEL) / 2])
        return cls((hits + 0.5) / (n_eff + 1), float(low), float(high), n_eff)

    def complement(self) -> Share:
        """Return the share of votes without the property."""
        return Share(1 - self.value, 1 - self.high, 1 - self.low, self.n_eff)


@dataclass(frozen=True)
class Agreement:
    """Agreement of thumbs with reviews.

    Attributes:
        votes: (2, 2) counts, thumb (down, up) by label (incorrect, correct).
        prior: Share of correct answers among those with thumbs.
        correct_given_thumb: By thumb (down, up), the share of correct answers among those that received it.
        up_given_label: By label (incorrect, correct), the share of ups among the thumbs.
    """

    votes: np.ndarray
    prior: Share
    correct_given_thumb: tuple[Share, Share]
    up_given_label: tuple[Share, Share]

    @property
    def evidence(self) -> np.ndarray:
        """(2,) log P(thumb | correct) / P(thumb | incorrect) of a down and of an up."""
        incorrect, correct = self.up_given_label[0].value, self.up_given_label[1].value
        return np.asarray(np.log([(1 - correct) / (1 - incorrect), correct / incorrect]))

    @property
    def n_eff_by_class(self) -> tuple[float, float]:
        """The effective numbers of incorrect and of correct answers that have both thumb and review."""
        return self.up_given_label[0].n_eff, self.up_given_label[1].n_eff


@dataclass(frozen=True)
class Reliability:
    """Evidence of each user's thumbs.

    Attributes:
        prior: Share of correct answers.
        evidence: (users + 1, 2) log-likelihood ratios; row 0 is pooled, columns are down and up.
    """

    prior: float
    evidence: np.ndarray

    def compute_posterior(self, votes: pd.DataFrame, n_answers: int) -> np.ndarray:
        """Compute the probability that each answer is correct: sigmoid(logit(prior) + evidence of its votes)."""
        return np.asarray(
            expit(logit(self.prior) + np.bincount(votes["row"], self.get_vote_evidence(votes), n_answers))
        )

    def get_vote_evidence(self, votes: pd.DataFrame) -> np.ndarray:
        """Return the log-likelihood ratio of each vote (columns row, user, up)."""
        return np.asarray(self.evidence[votes["user"], votes["up"].astype(int)])

    def compute_labels(self, votes: pd.DataFrame, n_answers: int, params: LabelParams) -> pd.DataFrame:
        """Label answers by their votes.

        Args:
            votes: Columns row, user, up.
            n_answers: Number of answers.
            params: `labels` of params.yaml.

        Returns:
            (answers,) label, true for correct, and its weight, 0 to `labels.max_thumb_weight`.
        """
        probability = self.compute_posterior(votes, n_answers)
        label = probability > 0.5
        label_probability = np.where(label, probability, 1 - probability)
        label_prior = np.where(label, self.prior, 1 - self.prior)
        removed_doubt = np.clip((label_probability - label_prior) / (1 - label_prior), 0, 1)
        return pd.DataFrame({"label": label, "weight": np.round(params.max_thumb_weight * removed_doubt, DIGITS)})

    def compute_user_reliability(self, votes: pd.DataFrame) -> np.ndarray:
        """Compute for each identified user in `votes` how often the thumbs are expected to agree with a reviewer."""
        correct = expit(logit(self.prior) + self.evidence)
        agree_probability = np.stack([1 - correct[:, DOWN], correct[:, UP]], axis=1)
        user_votes = votes[votes["user"] > 0]
        share = pd.Series(agree_probability[user_votes["user"], user_votes["up"].astype(int)])
        return np.asarray(share.groupby(user_votes["user"].to_numpy()).mean())


def measure_agreement(votes: pd.DataFrame, resolved_reviews: pd.DataFrame) -> Agreement:
    """Compare thumbs with reviews of the same answers.

    Args:
        votes: Columns row, user, up.
        resolved_reviews: By row: label, inclusion_probability.

    Returns:
        The agreement on answers that have both.
    """
    joined = _join_reviews(votes, resolved_reviews)
    answer, up, label, weight = (joined[name].to_numpy() for name in ("row", "up", "label", "weight"))
    is_first = ~joined.duplicated("row").to_numpy()

    def compute_share(hit: np.ndarray, among: np.ndarray) -> Share:
        return Share.from_votes(hit[among], weight[among], answer[among])

    return Agreement(
        votes=np.bincount(2 * up + label, minlength=4).reshape(2, 2),
        prior=compute_share(label, is_first),
        correct_given_thumb=(compute_share(label, ~up), compute_share(label, up)),
        up_given_label=(compute_share(up, ~label), compute_share(up, label)),
    )


def estimate_reliability(
    votes: pd.DataFrame, resolved_reviews: pd.DataFrame, agreement: Agreement, n_users: int, params: LabelParams
) -> Reliability | None:
    """Estimate the reliability of thumbs from training votes and reviews.

    Args:
        votes: Columns row, user, up.
        resolved_reviews: By row: label, inclusion_probability.
        agreement: `measure_agreement` of these votes and reviews.
        n_users: Number of identified users, in these rows or others, numbered from 1.
        params: `labels` of params.yaml.

    Returns:
        The reliability, or None if fewer than `labels.min_agreement` correct or incorrect answers have both.
    """
    if min(agreement.n_eff_by_class) < params.min_agreement:
        return None
    estimate = _estimate_by_dawid_skene if params.thumb_model == "dawid_skene" else _estimate_by_agreement
    evidence = estimate(votes, resolved_reviews, n_users, agreement, params.user_shrinkage)
    evidence[0] = agreement.evidence
    return Reliability(agreement.prior.value, evidence)


def _join_reviews(votes: pd.DataFrame, resolved_reviews: pd.DataFrame) -> pd.DataFrame:
    """Return the votes on reviewed answers, with the label and the number of answers that each represents."""
    joined = votes.join(resolved_reviews[["label", "inclusion_probability"]], on="row", how="inner")
    return joined.assign(label=joined["label"].astype(bool), weight=1 / joined["inclusion_probability"].fillna(1.0))


def _estimate_by_agreement(
    votes: pd.DataFrame, resolved_reviews: pd.DataFrame, n_users: int, agreement: Agreement, shrinkage: float
) -> np.ndarray:
    """Shift the pooled evidence by how often reviewers found the answers correct that a user liked, and disliked."""
    joined = _join_reviews(votes, resolved_reviews)
    evidence = np.tile(agreement.evidence, (n_users + 1, 1))
    for thumb in (DOWN, UP):
        thumb_votes = joined[joined["up"] == bool(thumb)]
        weight = thumb_votes["weight"].to_numpy()
        scaled_weight = weight * (weight.sum() / (weight**2).sum()) if len(thumb_votes) else weight
        correct = np.bincount(thumb_votes["user"], scaled_weight * thumb_votes["label"].to_numpy(), n_users + 1)
        pooled_share = agreement.correct_given_thumb[thumb].value
        share = (correct + shrinkage * pooled_share) / (
            np.bincount(thumb_votes["user"], scaled_weight, n_users + 1) + shrinkage
        )
        evidence[:, thumb] += logit(share) - logit(pooled_share)
    return evidence


def _estimate_by_dawid_skene(
    votes: pd.DataFrame, resolved_reviews: pd.DataFrame, n_users: int, agreement: Agreement, shrinkage: float
) -> np.ndarray:
    """Estimate error rates by expectation-maximization over all votes; the labels of reviews are fixed.

    The rates are shrunk towards the pooled ones. Only users with `shrinkage` votes or more have their own rates: fewer
    votes cannot be distinguished from chance.
    """
    if votes["up"].nunique() < 2:
        return np.tile(agreement.evidence, (n_users + 1, 1))
    from crowdkit.aggregation import DawidSkene  # some seconds

    user, up = votes["user"].to_numpy(), votes["up"].to_numpy()
    worker = np.where((np.bincount(user, minlength=n_users + 1) >= shrinkage)[user], user, 0)
    up_incorrect, up_correct = (share.value for share in agreement.up_given_label)
    workers = np.unique(worker)
    start = pd.DataFrame(
        np.tile([[1 - up_incorrect, 1 - up_correct], [up_incorrect, up_correct]], (len(workers), 1)),
        index=pd.MultiIndex.from_product([workers, [DOWN, UP]], names=["worker", "label"]),
        columns=[0, 1],
    )
    model = DawidSkene(initial_error_strategy="assign").fit(
        pd.DataFrame({"task": votes["row"].to_numpy(), "worker": worker, "label": up.astype(int)}),
        resolved_reviews["label"].astype(int),
        start,
    )
    assert model.probas_ is not None
    correct = model.probas_.loc[votes["row"], 1].to_numpy()
    rates = [
        (np.bincount(user, class_probability * up, n_users + 1) + shrinkage * rate)
        / (np.bincount(user, class_probability, n_users + 1) + shrinkage)
        for class_probability, rate in ((1 - correct, up_incorrect), (correct, up_correct))
    ]
    return np.asarray(np.log(np.stack([(1 - rates[1]) / (1 - rates[0]), rates[1] / rates[0]], axis=1)))
