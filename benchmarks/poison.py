"""Effect of one person who is wrong on purpose: who is flagged, and whether the guarantee holds, by simulation.

    python -m benchmarks.poison --runs 200

"Quiet": no one is flagged if no one is wrong on purpose. "Named": exactly those who were wrong are flagged.
"Guaranteed", "violated" and "shown" are those of `benchmarks.guarantee`, of a scorer trained on the same labels.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import expit, logit

from abstain.config.params import LabelParams, load_params
from abstain.data.labels.contradictions import find_contradictions
from abstain.data.labels.reliability import estimate_reliability, measure_agreement
from abstain.data.labels.user_share import cap_user_weights
from abstain.learning.metrics.weighted_metrics import auroc
from abstain.learning.thresholds.outcomes import ControlledThreshold
from abstain.learning.thresholds.risk_control import ReviewedAnswers, control_risk_by_params
from benchmarks.guarantee import Population, make_threshold_params

CORRECT = 0.65
DISLIKES_CORRECT, LIKES_INCORRECT, SLIPS = 0.14, 0.2, 0.03
"""How often a user dislikes a correct and likes an incorrect answer, and a reviewer errs."""


@dataclass(frozen=True)
class Crowd:
    """Answers of four batches: 70 % with a thumb, 90 % reviewed, some by two reviewers.

    `spread` is the standard deviation of the logit of the error rate of a user, and of a document. User 1 gives most
    thumbs, by Zipf's law.
    """

    seed: int = 0
    answers: int = 2000
    reviewers: int = 4
    users: int = 400
    spread: float = 0.0
    double_reviewed: float = 0.1

    def draw_rows(
        self, *, flipped_user: bool = False, flipped_batch: bool = False
    ) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
        """Draw labels, votes and the names of users; user 1 or the first reviewer's batch 000002 is inverted."""
        generator = np.random.default_rng([53, self.seed])
        truth = generator.random(self.answers) < CORRECT
        return (
            self._draw_labels(truth, generator, flipped_batch),
            self._draw_votes(truth, generator, flipped_user),
            [f"u{number}" for number in range(1, self.users + 1)],
        )

    def _draw_labels(self, truth: np.ndarray, generator: np.random.Generator, flipped: bool) -> pd.DataFrame:
        first = generator.integers(0, self.reviewers, self.answers)
        second = (first + generator.integers(1, self.reviewers, self.answers)) % self.reviewers
        batch = generator.integers(1, 5, self.answers)
        parts = []
        for reviewer, share in ((first, 0.9), (second, self.double_reviewed)):
            label = truth ^ (generator.random(self.answers) < SLIPS)
            label ^= flipped & (reviewer == 0) & (batch == 2)
            is_reviewed = generator.random(self.answers) < share
            rows = pd.DataFrame({"row": np.arange(self.answers), "reviewer": reviewer, "label": label, "batch": batch})
            parts.append(rows[is_reviewed])
        reviews = pd.concat(parts, ignore_index=True)
        return reviews.assign(
            reviewer="sme-" + reviews["reviewer"].astype(str), batch=reviews["batch"].map("{:06d}".format)
        )

    def _draw_votes(self, truth: np.ndarray, generator: np.random.Generator, flipped: bool) -> pd.DataFrame:
        frequency = 1 / np.arange(1, self.users + 1)
        user = generator.choice(self.users, self.answers, p=frequency / frequency.sum())
        document = generator.integers(0, 40, self.answers)
        user_effect, document_effect = (self.spread * generator.standard_normal(size) for size in (self.users, 40))
        base_logit = logit(np.where(truth, DISLIKES_CORRECT, LIKES_INCORRECT))
        is_wrong = generator.random(self.answers) < expit(base_logit + user_effect[user] + document_effect[document])
        up = truth ^ is_wrong ^ (flipped & (user == 0))
        has_thumb = generator.random(self.answers) < 0.7
        rows = pd.DataFrame({"row": np.arange(self.answers), "user": user + 1, "up": up})
        return rows[has_thumb].reset_index(drop=True)


Scorer = Callable[[np.ndarray], np.ndarray]
"""The confidence of each answer, by its features."""


@dataclass(frozen=True)
class Attack:
    """A user inverts `thumbs` thumbs on answers without review; a reviewer of a `share` of the reviews inverts them.

    With `approves` the reviewer calls everything correct.
    """

    thumbs: int = 0
    share: float = 0.0
    approves: bool = False


@dataclass(frozen=True)
class Assistant:
    """Answers with twenty features, one of which predicts correctness; a logistic regression is trained.

    Training: `reviewed` answers with review and thumb, and `liked` ones with a thumb only, of 200 users and the
    attacker. The threshold is tested on `tested` reviewed answers, by ten reviewers and the attacker.
    """

    reviewed: int = 300
    liked: int = 1000
    tested: int = 600
    target: float = 0.8
    population: Population = field(default_factory=lambda: Population(0.8, base_rate=CORRECT))

    def run(
        self, attack: Attack, labels: LabelParams, max_reviewer_share: float | None, seed: int
    ) -> tuple[float, float | None, float]:
        """Return the AUROC, the true precision at the guaranteed threshold (None without one), and its coverage."""
        generator = np.random.default_rng([59, seed])
        scorer = self._train_scorer(attack, labels, generator)
        features, _, label, reviewers = self._draw_reviewed(self.tested, attack, generator)
        test_features, test_truth, _, _ = self._draw_reviewed(20_000, Attack(), generator)
        confidence = scorer(test_features)
        training, _, training_label, _ = self._draw_reviewed(self.reviewed, attack, generator)
        result = control_risk_by_params(
            ReviewedAnswers(scorer(features), label.astype(int), reviewers=reviewers),
            ReviewedAnswers(scorer(training), training_label.astype(int)),
            make_threshold_params(self.target, max_reviewer_share=max_reviewer_share),
        )
        quality = float(auroc(test_truth, confidence))
        if not isinstance(result, ControlledThreshold):
            return quality, None, 0.0
        shown = confidence >= result.threshold
        return quality, float(test_truth[shown].mean()), float(shown.mean())

    def _draw_reviewed(
        self, answers: int, attack: Attack, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Draw features, truth, labels and their reviewers."""
        features = generator.standard_normal((answers, 20))
        latent = self.population._latent(features[:, 0], self.population.slope)
        truth = latent + generator.standard_normal(answers) > 0
        label = truth ^ (generator.random(answers) < SLIPS)
        is_attacked = generator.random(answers) < attack.share
        label = np.where(is_attacked, attack.approves | ~label, label)
        reviewers = np.empty(answers, object)
        reviewers[:] = [
            ["attacker" if is_attack else f"sme-{index % 10}"] for index, is_attack in enumerate(is_attacked.tolist())
        ]
        return features, truth, label, reviewers

    def _train_scorer(self, attack: Attack, params: LabelParams, generator: np.random.Generator) -> Scorer:
        from sklearn.linear_model import LogisticRegression

        answers = self.reviewed + self.liked + attack.thumbs
        features, truth, label, _ = self._draw_reviewed(answers, attack, generator)
        user = generator.integers(1, 201, answers)
        is_wrong = generator.random(answers) < np.where(truth, DISLIKES_CORRECT, LIKES_INCORRECT)
        is_wrong[self.reviewed + self.liked :] ^= True
        user[self.reviewed + self.liked :] = 201
        votes = pd.DataFrame({"row": np.arange(answers), "user": user, "up": truth ^ is_wrong})
        labels = pd.DataFrame({"label": label, "inclusion_probability": np.nan})[: self.reviewed]
        reliability = estimate_reliability(votes, labels, measure_agreement(votes, labels), 201, params)
        assert reliability is not None
        thumb_labels = reliability.compute_labels(votes, answers, params)
        weight, _ = cap_user_weights(
            votes, reliability.get_vote_evidence(votes), thumb_labels[self.reviewed :], params.max_user_share
        )
        target = np.append(label[: self.reviewed], thumb_labels["label"][self.reviewed :])
        model = LogisticRegression().fit(features, target, np.append(np.ones(self.reviewed), weight))
        return lambda rows: model.predict_proba(rows)[:, 1]


ATTACKS = {
    "nobody": Attack(),
    "a user of 1,000 thumbs turns them round": Attack(thumbs=1000),
    "a user of 4,000 thumbs turns them round": Attack(thumbs=4000),
    "a reviewer of 10 % of the verdicts turns them round": Attack(share=0.1),
    "a reviewer of 30 % of the verdicts turns them round": Attack(share=0.3),
    "a reviewer of 10 % of the verdicts approves of everything": Attack(share=0.1, approves=True),
    "a reviewer of 30 % of the verdicts approves of everything": Attack(share=0.3, approves=True),
}


def print_contradictions(runs: int) -> None:
    """Print how often exactly those who were wrong on purpose are flagged."""
    print("wrong on purpose | spread of users | runs | right: exactly those named | also named: somebody else")
    for spread in (0.0, 0.5):
        for user, batch in ((False, False), (True, False), (False, True), (True, True)):
            expected = {("user u1", None)} if user else set()
            expected |= {("reviewer sme-0", "000002")} if batch else set()
            n_exact = n_extra = 0
            for seed in range(runs):
                rows = Crowd(seed=seed, spread=spread).draw_rows(flipped_user=user, flipped_batch=batch)
                flagged = {
                    (contradiction.person, contradiction.batch) for contradiction in find_contradictions(*rows).flagged
                }
                n_exact += flagged == expected
                n_extra += bool(flagged - expected)
            attackers = " and ".join(["a user"] * user + ["a reviewer's batch"] * batch) or "nobody"
            print(f"{attackers} | {spread} | {runs} | {n_exact} | {n_extra}", flush=True)


def print_guarantees(runs: int, labels: LabelParams) -> None:
    """Print how often the guarantee is violated under each attack."""
    print("wrong on purpose | limits | AUROC | guaranteed | violated | shown")
    assistant = Assistant()
    for name, attack in ATTACKS.items():
        for limits, user_share, reviewer_share in (("none", 1.0, None), ("0.05 and 0.2", 0.05, 0.2)):
            params = labels.model_copy(update={"max_user_share": user_share})
            results = [assistant.run(attack, params, reviewer_share, seed) for seed in range(runs)]
            precisions = [precision for _, precision, _ in results if precision is not None]
            n_violated = sum(precision < assistant.target for precision in precisions)
            quality, coverage = (float(np.mean([result[index] for result in results])) for index in (0, 2))
            print(
                f"{name} | {limits} | {quality:.3f} | {len(precisions) / runs:.0%} | "
                f"{n_violated / runs:.1%} | {coverage:.0%}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    options = parser.parse_args()
    print_contradictions(options.runs)
    print_guarantees(options.runs, load_params(Path("params.yaml")).labels)


if __name__ == "__main__":
    main()
