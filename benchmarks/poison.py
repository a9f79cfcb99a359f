"""What one person can do who is wrong on purpose: who is named, and what becomes of the promise, by simulation.

    python -m benchmarks.poison --runs 200

"Quiet": nobody is named where nobody is wrong on purpose. "Named": those who were wrong, and nobody else. "Guaranteed",
"broken" and "shown" are those of `benchmarks.guarantee`, of a scorer that is trained on the same labels.
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
from abstain.learning.thresholds.risk_control import ControlledThreshold, ReviewedAnswers, control_risk
from benchmarks.guarantee import Population, asked

CORRECT = 0.65
DISLIKES_CORRECT, LIKES_INCORRECT, SLIPS = 0.14, 0.2, 0.03
"""How often a user dislikes a correct and likes an incorrect answer, and a reviewer errs."""


@dataclass(frozen=True)
class Crowd:
    """Answers of four batches, one thumb on seven in ten of them, nine in ten reviewed, some by two of the reviewers.

    `spread`: the standard deviation of the logit of a user's error rate, and of a document's. User 1 gives most thumbs,
    as Zipf's law has it.
    """

    seed: int = 0
    answers: int = 2000
    reviewers: int = 4
    users: int = 400
    spread: float = 0.0
    double_reviewed: float = 0.1

    def rows(
        self, *, flipped_user: bool = False, flipped_batch: bool = False
    ) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
        """Verdicts, votes and the users' names; user 1 or the first reviewer's batch 000002 is turned round."""
        generator = np.random.default_rng([53, self.seed])
        truth = generator.random(self.answers) < CORRECT
        return (
            self._verdicts(truth, generator, flipped_batch),
            self._votes(truth, generator, flipped_user),
            [f"u{number}" for number in range(1, self.users + 1)],
        )

    def _verdicts(self, truth: np.ndarray, generator: np.random.Generator, flipped: bool) -> pd.DataFrame:
        first = generator.integers(0, self.reviewers, self.answers)
        second = (first + generator.integers(1, self.reviewers, self.answers)) % self.reviewers
        batch = generator.integers(1, 5, self.answers)
        parts = []
        for who, share in ((first, 0.9), (second, self.double_reviewed)):
            label = truth ^ (generator.random(self.answers) < SLIPS)
            label ^= flipped & (who == 0) & (batch == 2)
            given = generator.random(self.answers) < share
            rows = pd.DataFrame({"row": np.arange(self.answers), "reviewer": who, "label": label, "batch": batch})
            parts.append(rows[given])
        every = pd.concat(parts, ignore_index=True)
        return every.assign(reviewer="sme-" + every["reviewer"].astype(str), batch=every["batch"].map("{:06d}".format))

    def _votes(self, truth: np.ndarray, generator: np.random.Generator, flipped: bool) -> pd.DataFrame:
        often = 1 / np.arange(1, self.users + 1)
        user = generator.choice(self.users, self.answers, p=often / often.sum())
        document = generator.integers(0, 40, self.answers)
        of_user, of_document = (self.spread * generator.standard_normal(of) for of in (self.users, 40))
        usual = logit(np.where(truth, DISLIKES_CORRECT, LIKES_INCORRECT))
        wrong = generator.random(self.answers) < expit(usual + of_user[user] + of_document[document])
        up = truth ^ wrong ^ (flipped & (user == 0))
        given = generator.random(self.answers) < 0.7
        rows = pd.DataFrame({"row": np.arange(self.answers), "user": user + 1, "up": up})
        return rows[given].reset_index(drop=True)


Scorer = Callable[[np.ndarray], np.ndarray]
"""The confidence of each answer, by its features."""


@dataclass(frozen=True)
class Attack:
    """One user's `thumbs` turned round on answers that nobody reviews; one reviewer of a `share` of all verdicts, who
    turns them round (`approves`: says correct to everything)."""

    thumbs: int = 0
    share: float = 0.0
    approves: bool = False


@dataclass(frozen=True)
class Assistant:
    """Answers with twenty features, of which one tells whether they are correct; a logistic regression is trained.

    Training: `reviewed` answers with verdict and thumb, and as many `liked` with a thumb alone, of 200 users and the
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
        """The scorer's AUROC; the true precision at the guaranteed threshold (None: nothing is guaranteed), and the
        share of answers that it shows."""
        generator = np.random.default_rng([59, seed])
        scorer = self._trained(attack, labels, generator)
        features, _, verdict, who = self._judged(self.tested, attack, generator)
        fresh, true, _, _ = self._judged(20_000, Attack(), generator)
        confidence = scorer(fresh)
        training, _, of_training, _ = self._judged(self.reviewed, attack, generator)
        found = control_risk(
            ReviewedAnswers(scorer(features), verdict.astype(int), reviewers=who),
            ReviewedAnswers(scorer(training), of_training.astype(int)),
            asked(self.target, max_reviewer_share=max_reviewer_share),
        )
        quality = float(auroc(true, confidence))
        if not isinstance(found, ControlledThreshold):
            return quality, None, 0.0
        shown = confidence >= found.threshold
        return quality, float(true[shown].mean()), float(shown.mean())

    def _judged(
        self, answers: int, attack: Attack, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Features, truth, verdicts and their reviewers."""
        features = generator.standard_normal((answers, 20))
        latent = self.population._latent(features[:, 0], self.population.slope)
        truth = latent + generator.standard_normal(answers) > 0
        verdict = truth ^ (generator.random(answers) < SLIPS)
        attacked = generator.random(answers) < attack.share
        verdict = np.where(attacked, attack.approves | ~verdict, verdict)
        who = np.empty(answers, object)
        who[:] = [["attacker" if one else f"sme-{at % 10}"] for at, one in enumerate(attacked.tolist())]
        return features, truth, verdict, who

    def _trained(self, attack: Attack, params: LabelParams, generator: np.random.Generator) -> Scorer:
        from sklearn.linear_model import LogisticRegression

        answers = self.reviewed + self.liked + attack.thumbs
        features, truth, verdict, _ = self._judged(answers, attack, generator)
        user = generator.integers(1, 201, answers)
        wrong = generator.random(answers) < np.where(truth, DISLIKES_CORRECT, LIKES_INCORRECT)
        wrong[self.reviewed + self.liked :] ^= True
        user[self.reviewed + self.liked :] = 201
        votes = pd.DataFrame({"row": np.arange(answers), "user": user, "up": truth ^ wrong})
        verdicts = pd.DataFrame({"label": verdict, "inclusion_probability": np.nan})[: self.reviewed]
        known = estimate_reliability(votes, verdicts, measure_agreement(votes, verdicts), 201, params)
        assert known is not None
        by_thumb = known.labels(votes, answers, params)
        weight, _ = cap_user_weights(
            votes, known.get_vote_evidence(votes), by_thumb[self.reviewed :], params.max_user_share
        )
        label = np.append(verdict[: self.reviewed], by_thumb["label"][self.reviewed :])
        model = LogisticRegression().fit(features, label, np.append(np.ones(self.reviewed), weight))
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


def name_table(runs: int) -> None:
    print("wrong on purpose | spread of users | runs | right: exactly those named | also named: somebody else")
    for spread in (0.0, 0.5):
        for user, batch in ((False, False), (True, False), (False, True), (True, True)):
            expected = {("user u1", None)} if user else set()
            expected |= {("reviewer sme-0", "000002")} if batch else set()
            right = others = 0
            for seed in range(runs):
                rows = Crowd(seed=seed, spread=spread).rows(flipped_user=user, flipped_batch=batch)
                found = {(one.person, one.batch) for one in find_contradictions(*rows).flagged}
                right += found == expected
                others += bool(found - expected)
            who = " and ".join(["a user"] * user + ["a reviewer's batch"] * batch) or "nobody"
            print(f"{who} | {spread} | {runs} | {right} | {others}", flush=True)


def promise_table(runs: int, labels: LabelParams) -> None:
    print("wrong on purpose | limits | AUROC | guaranteed | broken | shown")
    assistant = Assistant()
    for name, attack in ATTACKS.items():
        for limits, user_share, reviewer_share in (("none", 1.0, None), ("0.05 and 0.2", 0.05, 0.2)):
            params = labels.model_copy(update={"max_user_share": user_share})
            found = [assistant.run(attack, params, reviewer_share, seed) for seed in range(runs)]
            made = [precision for _, precision, _ in found if precision is not None]
            broken = sum(precision < assistant.target for precision in made)
            quality, shown = (float(np.mean([one[at] for one in found])) for at in (0, 2))
            print(
                f"{name} | {limits} | {quality:.3f} | {len(made) / runs:.0%} | {broken / runs:.1%} | {shown:.0%}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    chosen = parser.parse_args()
    name_table(chosen.runs)
    promise_table(chosen.runs, load_params(Path("params.yaml")).labels)


if __name__ == "__main__":
    main()
