import itertools
import json
from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import pandas as pd
import pytest

from abstain.config.params import LabelParams, SplitParams
from abstain.core.contracts import MIN_INCLUSION_PROBABILITY, Review, Thumb
from abstain.core.errors import AbstainError
from abstain.data.labels import answer_labels
from abstain.data.labels.data_card import DataCard, NearDuplicates
from abstain.data.labels.near_duplicate_splits import split_rows
from abstain.data.labels.training_table import COLUMNS, build_training_table
from abstain.data.store.splits import hash_to_unit_interval
from tests.data.frames import BY_GROUP, BY_TIME, FROZEN, LABELS, interactions, reviews, thumbs
from tests.factories import ASKED, feedback, interaction, review

Tables = tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]

NO_DUPLICATES = {
    "line_of_business": "retail",
    **dict.fromkeys(("question_duplicate", "answer_duplicate"), lambda frame: pd.Series(pd.NA, frame.index, "Int64")),
}
FEW = LABELS.model_copy(update={"min_agreement": 5})


def draw_crowd(seed: int = 0, answers: int = 600) -> Tables:
    """Draw answers of 40 groups in two batches, most with thumbs, half of them reviewed, some twice."""
    rng = np.random.default_rng(seed)

    def make_replies(row: np.ndarray, name: str, unit: str) -> pd.DataFrame:
        delay = pd.to_timedelta(rng.integers(1, 90, len(row)), unit)
        return pd.DataFrame({"interaction_id": ids[row], name: asked[row].reset_index(drop=True) + delay})

    def make_batches(count: int) -> np.ndarray:
        return np.where(np.arange(count) < count // 2, "000001", "000002")

    correct = rng.random(answers) < 0.6
    asked = pd.Series(ASKED + pd.to_timedelta(rng.integers(0, 90, answers), "D"))
    ids = np.array([f"q-{number:04d}" for number in rng.permutation(answers)])
    rows = pd.DataFrame({"interaction_id": ids, "asked_at": asked, "batch": make_batches(answers)}).assign(
        group=[f"g{number}" for number in rng.integers(0, 40, answers)],
        product=rng.choice(np.array(["cards", None]), answers),
        display=None,
        propensity=np.nan,
        refusal=np.arange(answers) % 7 == 0,
        **NO_DUPLICATES,
    )
    row = rng.integers(0, answers, answers)
    given = make_replies(row, "given_at", "min").assign(
        thumb=np.where(correct[row] == (rng.random(answers) < 0.85), "up", "down"),
        user=[None if number == 0 else f"u{number}" for number in rng.integers(0, 30, answers)],
    )
    row = rng.integers(0, answers, answers // 2)
    label = correct[row] ^ (rng.random(len(row)) < 0.1)
    judged = make_replies(row, "reviewed_at", "h").assign(
        reviewer=[f"sme-{number}" for number in rng.integers(0, 3, len(row))],
        complete=label,
        correct=label | (rng.random(len(row)) < 0.3),
        truthful=True,
        inclusion_probability=rng.choice([0.2, 0.5, np.nan], len(row)),
        batch=make_batches(len(row)),
    )
    return rows, given, judged


def build_table(
    tables: Tables, labels: LabelParams = FEW, split: SplitParams = BY_GROUP
) -> tuple[pd.DataFrame, DataCard]:
    return build_training_table(*tables, labels, split)


@pytest.mark.heavy
def test_training_table_columns_with_types() -> None:
    frame, summary = build_table(draw_crowd())
    assert tuple(frame.columns) == COLUMNS
    assert frame["correct"].isin([0, 1]).all() and frame["correct"].dtype == "int64"
    by_reviewer = frame["source"] == "review"
    assert set(frame["source"]) == {"review", "thumb"} and frame["weight"].gt(0).all()
    assert frame.loc[~by_reviewer, "weight"].le(FEW.max_thumb_weight).all()
    assert all(frame[name].dtype == "boolean" for name in ("complete", "review_correct", "truthful"))
    assert (frame["complete"].notna() == by_reviewer).all()
    is_correct = (frame["complete"] & frame["review_correct"])[by_reviewer].astype(int)
    assert (frame.loc[by_reviewer, "correct"] == is_correct).all()
    assert frame["product"].isna().any() and frame["asked_at"].dt.tz is not None
    written = json.dumps(summary.to_dict())
    assert DataCard.from_dict(json.loads(written)).to_dict() == summary.to_dict() and len(written) < 6000


def test_data_card_counts_add_up() -> None:
    tables = draw_crowd()
    frame, summary = build_table(tables)
    labels, conflicts = summary.labels, summary.conflicts
    assert labels.reviewed + labels.thumb == len(frame) == len(tables[0]) - labels.unlabelled - labels.excluded
    assert labels.tied_thumbs > 0 and labels.conflicting_reviews == frame["reviews_disagree"].sum() > 0
    assert labels.correct == frame["correct"].sum()
    assert [card.answers for card in summary.splits] == [
        (frame["split"] == name).sum() for name in ("train", "validation", "holdout", "newest")
    ]
    assert [(card.kind, card.answers, card.correct, card.reviewed) for card in summary.kinds] == [
        (name, len(of), of["correct"].mean(), (of["source"] == "review").sum())
        for name, of in (("answers", frame[~frame["refusal"]]), ("refusals", frame[frame["refusal"]]))
    ]
    assert frame["refusal"].dtype == bool and 0 < frame["refusal"].sum() < len(frame) / 3
    assert set(conflicts.answers) <= set(frame.loc[frame["reviews_disagree"], "interaction_id"])
    assert len(conflicts.answers) + conflicts.more == labels.conflicting_reviews
    assert summary.reviewers.answers > 0 and summary.thumbs.weights == "estimated, agreement"
    assert conflicts.thumbs_against_reviewers == frame["thumbs_disagree"].sum() > 0
    assert (frame.loc[frame["thumbs_disagree"], "source"] == "review").all()


@pytest.mark.heavy
@pytest.mark.parametrize("split", [BY_GROUP, BY_TIME], ids=["group", "time"])
@pytest.mark.parametrize("seed", range(3))
def test_training_table_is_independent_of_order(seed: int, split: SplitParams) -> None:
    tables = draw_crowd(seed, 900)
    split = limit_groups(tables, split)
    frame, summary = build_table(tables, split=split)
    shuffled = tuple(rows.sample(frac=1, random_state=seed) for rows in tables)
    again, same = build_table(shuffled, split=split)  # type: ignore[arg-type]
    assert again.to_parquet(index=False) == frame.to_parquet(index=False)
    assert json.dumps(same.to_dict()) == json.dumps(summary.to_dict())


def assert_same_rows(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(found.reset_index(drop=True), expected.reset_index(drop=True), check_exact=True)


def limit_groups(tables: Tables, split: SplitParams) -> SplitParams:
    """For a split by time, ask about half of the groups only before the hold-out opens."""
    if split.by == "time":
        rows = tables[0]
        early = rows["asked_at"] < split.holdout_from
        rows["group"] = np.where(early, "early " + rows["group"], rows["group"])
    return split


def disturb(tables: Tables, ids: set[str], seed: int) -> Tables:
    """Flip the feedback on `ids`, remove half of it, and add thumbs of the same people."""
    rows, given, judged = (frame.copy() for frame in tables)
    for frame, column in ((given, "thumb"), (judged, "complete")):
        theirs = frame["interaction_id"].isin(ids)
        frame.loc[theirs, column] = frame[column].map({"up": "down", "down": "up", True: False, False: True})[theirs]
    judged.loc[judged["interaction_id"].isin(ids), "inclusion_probability"] = 0.01
    dropped = [
        frame[~(frame["interaction_id"].isin(ids) & (np.arange(len(frame)) % 2 == seed % 2))]
        for frame in (given, judged)
    ]
    more = given[given["interaction_id"].isin(ids)].assign(user="u1", thumb="up")
    return rows, pd.concat([dropped[0], more]), dropped[1]


@pytest.mark.heavy
@pytest.mark.parametrize("split", [BY_GROUP, BY_TIME], ids=["group", "time"])
@pytest.mark.parametrize(
    ("model", "seed"),
    [*(("agreement", seed) for seed in range(4)), pytest.param("dawid_skene", 0, marks=pytest.mark.slow)],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning:crowdkit")
def test_training_table_no_leak_into_training(seed: int, split: SplitParams, model: str) -> None:
    tables = draw_crowd(seed, 1500)
    split = limit_groups(tables, split)
    params = FEW.model_copy(update={"thumb_model": model})
    frame, summary = build_table(tables, params, split)
    assert summary.thumbs.weights == f"estimated, {model}"
    kept = frame[frame["split"] == "train"]
    outside = set(tables[0]["interaction_id"]) - set(list_training_ids(tables, split))
    changed, after = build_table(disturb(tables, outside, seed), params, split)
    assert_same_rows(changed[changed["split"] == "train"], kept)
    assert after.thumbs == summary.thumbs
    assert not changed[changed["split"] == "holdout"].equals(frame[frame["split"] == "holdout"])


def list_training_ids(tables: Tables, split: SplitParams) -> pd.Series:
    rows = tables[0].sort_values(["batch", "asked_at"], ignore_index=True)
    return rows["interaction_id"][split_rows(rows, split)["split"] == "train"]


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(4))
def test_training_table_frozen_holdout_never_changes(seed: int) -> None:
    tables = draw_crowd(seed, 900)
    frame, _ = build_table(tables)
    held = frame[frame["split"] == "holdout"]
    rows, given, judged = disturb(tables, set(list_training_ids(tables, BY_GROUP)), seed)
    late_thumbs = given.assign(given_at=FROZEN, thumb="down", user="late")
    late_reviews = judged.assign(reviewed_at=FROZEN + timedelta(days=1), reviewer="late", complete=False)
    changed, _ = build_table((rows, pd.concat([given, late_thumbs]), pd.concat([judged, late_reviews])))
    assert_same_rows(changed[changed["split"] == "holdout"], held)
    assert not changed[changed["split"] == "newest"].equals(frame[frame["split"] == "newest"])


def test_training_table_fixed_weights_below_min_agreement() -> None:
    frame, summary = build_table(draw_crowd(), LABELS.model_copy(update={"min_agreement": 1000, "max_user_share": 1.0}))
    assert set(frame.loc[frame["source"] == "thumb", "weight"]) == {0.4}
    assert summary.thumbs.weights == "fixed"
    assert "1000 of each are needed (labels.min_agreement)" in summary.thumbs.reason
    assert summary.thumbs.users.reliability is None
    known, _ = build_table(draw_crowd())
    by_thumb = known[known["source"] == "thumb"]
    assert set(by_thumb.loc[by_thumb["split"] == "holdout", "weight"]) == {0.4}
    assert by_thumb.loc[by_thumb["split"] == "train", "weight"].nunique() > 5


def test_training_table_limits_user_share_in_training() -> None:
    rows, given, judged = draw_crowd()
    given["user"] = np.where(np.arange(len(given)) % 3 == 0, "u1", given["user"])
    free, _ = build_table((rows, given, judged), FEW.model_copy(update={"max_user_share": 1.0}))
    frame, summary = build_table((rows, given, judged))
    largest = summary.thumbs.largest_share
    assert largest.before > 0.2 and largest.after == pytest.approx(largest.limit) and largest.limit == 0.05
    cut = frame["weight"] < free["weight"]
    assert cut.any() and set(frame.loc[cut, "source"]) == {"thumb"} and set(frame.loc[cut, "split"]) == {"train"}
    assert (frame["weight"] <= free["weight"]).all()
    pd.testing.assert_frame_equal(frame.drop(columns="weight"), free.drop(columns="weight"))


def test_training_table_near_duplicates_of_holdout() -> None:
    """A later twin is left out; a twin in a group that is too large to join stays, and the hold-out row is marked."""
    names = [f"g{n}" for n in range(200)]
    position = {name: hash_to_unit_interval(BY_GROUP.seed, name) for name in names}
    held = [name for name in names if position[name] < BY_GROUP.holdout]
    trained = [name for name in names if position[name] >= BY_GROUP.holdout + BY_GROUP.validation]
    rows = [interaction(f"i-{name}-{n}", group=name, question="And?") for name in names for n in range(2)]
    rows += [interaction(f"large-{n}", group=trained[0], question="And?") for n in range(50)]
    rows.append(interaction("a", group=held[0], question="What is the fee of the Gold Card?"))
    rows.append(interaction("later", group=trained[1], question="What is the fee of the Blue Card?"))
    rows.append(interaction("b", group=held[1], question="When is the Gold Card sent to me?"))
    rows.append(interaction("large", group=trained[0], question="When is the Blue Card sent to me?"))
    asked = interactions(rows)
    asked.loc[asked["interaction_id"] == "later", "batch"] = "000002"
    judged = reviews([review(row.interaction_id, right=bool(at % 2)) for at, row in enumerate(rows)])
    frame, summary = build_training_table(asked, thumbs([]), judged, LABELS, BY_GROUP)
    assert set(asked["interaction_id"]) - set(frame["interaction_id"]) == {"later"}
    assert frame.loc[frame["duplicate_in_training"], "interaction_id"].tolist() == ["b"]
    counts = NearDuplicates(joined_groups=0, left_out=1, holdout_in_training=1, validation_in_training=0)
    assert summary.near_duplicates == counts
    assert summary.labels.excluded == 1


def test_training_table_ignores_unknown_rejects_repeated_answers() -> None:
    rows, given, judged = draw_crowd()
    frame, _ = build_table((rows, given, judged))
    strays = [pd.concat([part.assign(interaction_id="nobody-asked-this"), part]) for part in (given, judged)]
    again, _ = build_table((rows, strays[0], strays[1]))
    pd.testing.assert_frame_equal(again, frame)
    with pytest.raises(AbstainError, match="interaction 'q-[0-9]{4}' is in data/ twice"):
        build_table((pd.concat([rows, rows.tail(1)]), given, judged))


@pytest.mark.parametrize("typed", [True, False], ids=["typed", "untyped"])
def test_training_table_without_labels_raises(typed: bool) -> None:
    crowd = draw_crowd()
    nothing = [part.head(0) for part in crowd] if typed else [interactions([]), thumbs([]), reviews([])]
    for rows in (nothing[0], crowd[0]):
        with pytest.raises(AbstainError, match="no labelled rows in the split 'train'"):
            build_table((rows, nothing[1], nothing[2]))


def test_training_table_needs_only_one_kind_of_feedback() -> None:
    rows, given, judged = draw_crowd()
    by_reviewer, _ = build_table((rows, thumbs([]), judged))
    assert set(by_reviewer["source"]) == {"review"} and not by_reviewer["thumbs_disagree"].any()
    by_thumb, summary = build_table((rows, given, reviews([])))
    assert set(by_thumb["source"]) == {"thumb"} and by_thumb["complete"].isna().all()
    assert summary.thumbs.weights == "fixed"


@pytest.mark.parametrize("by", ["thumb", "review"])
def test_training_table_unsampled_label_has_propensity_if_shown(by: str) -> None:
    rows, given, judged = draw_crowd()
    kind = np.arange(len(rows)) % 3
    rows["display"] = np.array(["shown", "shown", "withheld"])[kind]
    rows["propensity"] = np.array([0.25, 1e-9, 0.25])[kind]
    unsampled = judged.assign(inclusion_probability=np.nan)
    frame, _ = build_table((rows, given, reviews([])) if by == "thumb" else (rows, thumbs([]), unsampled))
    expected = pd.Series(np.array([0.25, MIN_INCLUSION_PROBABILITY, np.nan])[kind], rows["interaction_id"])
    np.testing.assert_array_equal(frame["inclusion_probability"], expected[frame["interaction_id"]])
    assert not frame["sampled"].any() and frame["inclusion_probability"].nunique(dropna=False) == 3


def tally(*rows: Thumb) -> list[tuple[int, int, bool]]:
    """Return the countable thumbs on answers `a`, `b` ... as (row, user, up)."""
    placed = thumbs(rows)
    placed = placed.assign(row=placed.pop("interaction_id").map("abc".index))
    placed["user"] = pd.factorize(placed["user"], sort=True)[0] + 1
    return list(answer_labels.select_countable_thumbs(placed).itertuples(index=False, name=None))


def place(rows: Sequence[Review]) -> pd.DataFrame:
    placed = reviews(rows)
    return placed.assign(row=placed.pop("interaction_id").map("abc".index))


def assign_all(verdicts: pd.DataFrame, balance: list[int], weight: float = 0.4) -> pd.DataFrame:
    said = pd.DataFrame({"label": np.array(balance) > 0, "weight": weight})
    return answer_labels.assign_labels(pd.Series([np.nan] * len(balance)), verdicts, np.array(balance), said, LABELS)


def resolve_all(*rows: Review, **changes: object) -> pd.DataFrame:
    params = LABELS.model_copy(update=changes)
    return answer_labels.resolve_reviews(answer_labels.select_latest_reviews(place(rows), params), params)


NOBODY = resolve_all()


def test_assign_labels_review_outranks_thumbs() -> None:
    judged = review("a", complete=False, correct=True, truthful=False, inclusion_probability=0.2)
    found = assign_all(resolve_all(judged), [5, -1, 2])
    assert found["correct"].tolist() == [0, 0, 1] and found["source"].tolist() == ["review", "thumb", "thumb"]
    assert found["weight"].tolist() == [1.0, 0.4, 0.4] and found["sampled"].tolist() == [True, False, False]
    criteria = ["complete", "review_correct", "truthful", "inclusion_probability"]
    assert found.loc[0, criteria].tolist() == [False, True, False, 0.2]
    assert found.loc[1:, criteria].isna().all(axis=None)


def test_assign_labels_no_balance_or_weight_gives_none() -> None:
    assert assign_all(NOBODY, [0, 0]).source.isna().all()
    assert assign_all(NOBODY, [3], weight=0.0).source.isna().all()
    assert assign_all(resolve_all(review("a")), [0], weight=0.0).source.tolist() == ["review"]


@pytest.mark.parametrize("failing", ["complete", "correct", "truthful"])
def test_resolve_reviews_correct_needs_all_criteria(failing: str) -> None:
    one = review("a", **{failing: False})
    assert not resolve_all(one).loc[0]["label"]
    assert resolve_all(one, correct_if=tuple(name for name in LABELS.correct_if if name != failing)).loc[0]["label"]


FIRST, SECOND, THIRD = (
    review("a", right=True, days=1, reviewer="x"),
    review("a", right=True, days=2, reviewer="y"),
    review("a", right=False, days=3, reviewer="z"),
)


@pytest.mark.parametrize(
    ("rows", "latest", "majority", "strict"),
    [
        ((FIRST, SECOND), True, True, True),
        ((FIRST, SECOND, THIRD), False, True, False),
        ((SECOND, THIRD), False, False, False),  # one against one is not right
        ((THIRD, review("a", days=4, reviewer="x")), True, False, False),
        ((THIRD, review("a", days=4, reviewer="z")), True, True, True),  # z has changed their mind
        ((review("a", reviewer="x"), review("a", right=False, reviewer="y")), False, False, False),  # of one moment
    ],
)
def test_resolve_reviews_conflict_rules(rows: tuple[Review, ...], latest: bool, majority: bool, strict: bool) -> None:
    expected = {"latest": latest, "majority": majority, "strict": strict}
    for order in itertools.permutations(rows):
        assert {rule: bool(resolve_all(*order, conflicts=rule).loc[0]["label"]) for rule in expected} == expected


def test_resolve_reviews_inclusion_probability_of_deciding() -> None:
    earlier, later = review("a", inclusion_probability=0.9), review("a", days=3, inclusion_probability=0.1)
    other = review("a", days=3, reviewer="other", inclusion_probability=0.1)
    for rows, rule, probability in (
        ((earlier, later), "latest", 0.1),
        ((earlier, later), "strict", 0.1),  # both decide: one reviewer
        ((earlier, other), "strict", 0.9),
    ):
        assert resolve_all(*rows, conflicts=rule).loc[0]["inclusion_probability"] == probability
    assert np.isnan(resolve_all(earlier, review("a", days=3)).loc[0]["inclusion_probability"])


def test_find_disagreements_compares_labels_of_all_reviews() -> None:
    changed_mind = [review("a", right=False, days=1), review("a", right=True, days=2)]
    agreed = [review("b", days=1), review("b", days=2, reviewer="other")]
    same_label = [review("c", truthful=truthful, right=False, days=days) for days, truthful in ((1, False), (2, True))]
    assert answer_labels.find_disagreements(place([*changed_mind, *agreed, *same_label]), LABELS).tolist() == [0]


def test_select_countable_thumbs_last_thumb_of_user() -> None:
    up, down = feedback("a", "up"), feedback("a", "down", days=2)
    assert tally(up, up, down) == [(0, 0, True), (0, 0, True), (0, 0, False)], "every anonymous thumb counts"
    own = feedback("a", "down", days=4, user="u"), feedback("a", "up", days=1, user="u")
    same_moment = feedback("a", "up", user="u"), feedback("a", "down", user="u")
    for thumbs_of_user in (own, same_moment):
        assert tally(*thumbs_of_user) == tally(*thumbs_of_user[::-1]) == [(0, 1, False)]
    assert tally(*own, feedback("b", "up", user="u")) == [(0, 1, False), (1, 1, True)]
