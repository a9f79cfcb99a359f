"""What the report says, read from its Markdown and from its page; how it looks is `test_report_browser`'s."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from abstain.core.formatting import format_number, format_percent, format_percent_near
from abstain.core.markdown import bold, document, escape, heading, paragraph, records_table, table, to_single_line
from abstain.reports.evaluation import EvaluationResult, leaderboard_table, render_evaluation
from abstain.reports.page import STATUS_MARKS, State, headline_section, render_html, replace_images
from abstain.reports.plots import PLOTS
from tests.reports.builders import GUARANTEED, HEURISTIC, LINK, NASTY, ROWS, TAG, evaluated
from tests.reports.reading import READER, Page, said_in_markdown, said_on_page, shown, tokens, words


def at(**figures: float | None) -> dict[str, Any]:
    """Changed figures of the hold-out at the served threshold."""
    return {f"metrics.holdout.at_threshold.{name}": value for name, value in figures.items()}


BROKEN = at(precision=0.7851, coverage=0.5026)
FEW = at(precision=1.0, shown=1, shown_n_eff=1.0)
NOTHING = at(precision=None, coverage=0.0, shown=0, shown_n_eff=0.0)
IMAGES = {name: f"<svg>{name}</svg>".encode() for name in PLOTS}


def markdown_of(**options: Any) -> str:
    return render_evaluation(evaluated(**options))


def pages(**options: Any) -> tuple[str, str]:
    markdown = markdown_of(**options)
    return markdown, render_html(markdown, IMAGES)


def first_lines(markdown: str) -> str:
    """From the verdict to the first section."""
    return markdown.partition("\n## ")[2].partition("\n## ")[0]


def section(markdown: str, title: str) -> str:
    return markdown.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def table_of(page: str, *columns: str) -> list[list[str]]:
    """The rows of the first table whose columns begin with `columns`, the names of the columns first."""
    return next(table for table in Page(page).tables if table[0][: len(columns)] == list(columns))


MARKDOWN, PAGE = pages()


OF_ALL = "on the hold-out: {} of all answers are shown and incorrect, at most {} was guaranteed"
GUARANTEED_SHARE = "of the shown answers are correct, at least 85 % was guaranteed"
UNCHECKED = "The guarantee of at least 85 % correct cannot be checked:"
NONE = "No guarantee can be made:"
VERDICTS: list[tuple[State, str, float, dict[str, Any], dict[str, Any]]] = [
    ("passed", f"Guarantee kept on the hold-out: 87.2 % {GUARANTEED_SHARE}", 0.85, at(precision=0.8723), {}),
    ("failed", f"Guarantee not kept on the hold-out: 78.5 % {GUARANTEED_SHARE}", 0.85, BROKEN, {}),
    ("failed", f"Guarantee not kept on the hold-out: 84.996 % {GUARANTEED_SHARE}", 0.85, at(precision=0.84996), {}),
    ("warned", f"{UNCHECKED} nothing is shown on the hold-out", 0.85, NOTHING, {}),
    ("warned", f"{UNCHECKED} the hold-out has 1 shown answer where 20 are needed", 0.85, FEW, {}),
    *(
        ("warned", f"{NONE} {why}", 0.85, changed, {"guaranteed": False})
        for why, changed in {
            "on the hold-out 78.5 % of the shown answers are correct, at least 85 % was asked for": BROKEN,
            "nothing is shown on the hold-out": NOTHING,
            "the hold-out has 31 shown answers, effective sample size 1, where 20 are needed": FEW | at(shown=31),
        }.items()
    ),
    *(
        (state, headline, target, changed, {"metric": "error_rate"})
        for state, headline, target, changed in (
            (
                "warned",
                "The guarantee of at most 10 % shown and incorrect cannot be checked: the hold-out has 1 shown answer "
                "where 20 are needed",
                0.1,
                FEW,
            ),
            ("passed", f"Guarantee kept {OF_ALL.format('10.8 %', '11 %')}", 0.11, BROKEN),
            ("failed", f"Guarantee not kept {OF_ALL.format('10.8 %', '10 %')}", 0.1, BROKEN),
            (
                "warned",
                "The guarantee of at most 10 % shown and incorrect cannot be checked: nothing is shown on the hold-out",
                0.1,
                NOTHING,
            ),
        )
    ),
]


@pytest.mark.parametrize(("state", "headline", "target", "changed", "options"), VERDICTS)
def test_verdict_is_said_plainly_and_first(
    state: State, headline: str, target: float, changed: dict[str, Any], options: dict[str, Any]
) -> None:
    markdown = markdown_of(target=target, changed=changed, **options)
    assert re.findall(r"^#+ .*", markdown, re.MULTILINE)[1] == f"## {STATUS_MARKS[state]} {escape(headline)}"
    page = Page(render_html(markdown.partition("\n## Thresholds")[0], IMAGES))
    assert page.of("h1", "h2")[1] == f"{STATUS_MARKS[state]} {headline}"
    assert ("section", {"class": f"card verdict {state}", "id": "verdict"}) in page.elements
    assert page.of("title") == [f"Confidence model: evaluation: {headline}"]


def test_a_missed_target_is_told_in_answers_and_against_chance() -> None:
    changed = BROKEN | {"metrics.holdout.effective_sample_size": 187.0}
    text = first_lines(markdown_of(target=0.85, changed=changed))
    assert "The target is missed by about 6 of the 94 answers shown." in text
    low, high = "metrics.holdout.at_threshold.precision_low", "metrics.holdout.at_threshold.precision_high"
    by_chance = first_lines(markdown_of(target=0.85, changed=changed | {low: 0.7, high: 0.86}))
    assert "the interval holds it: this may be chance." in by_chance
    assert "measured on the hold-out, 95 % interval 70.0 % to 86.0 %" in by_chance
    not_by_chance = first_lines(markdown_of(target=0.85, changed=changed | {low: 0.7, high: 0.84}))
    assert "the interval does not hold it: chance alone would hardly do that." in not_by_chance
    rate = markdown_of(metric="error_rate", target=0.1, changed=changed)
    assert "The target is missed by about 1 of the 187 answers." in first_lines(rate)
    assert "missed" not in first_lines(markdown_of(target=0.75, changed=changed))


def test_headline_figures_without_near_duplicates_are_printed() -> None:
    probe, at = evaluated().served_row, evaluated().at_threshold
    assert (
        f"12 of the {ROWS} answers of the hold-out have one. On the other 228 the AUROC is 0.712 (on all "
        f"{format_number(probe['auroc'])}), and 45.7 % of the answers are shown, 83.2 % of them correct, 7.7 % "
        f"shown and incorrect (of all: {format_percent(at['coverage'])} of the answers are shown, {format_percent(at['precision'])} of "
        f"them correct, {format_percent(at['coverage'] * (1 - at['precision']))})."
    ) in first_lines(MARKDOWN)
    apart = "metrics.holdout.without_near_duplicates"
    none = first_lines(markdown_of(changed={f"{apart}.near_duplicates": 0, f"{apart}.rows": ROWS}))
    assert "no answer of the hold-out has one." in none
    every = first_lines(
        markdown_of(changed={f"{apart}.near_duplicates": ROWS, f"{apart}.rows": 0, f"{apart}.auroc": None})
    )
    assert f"all {ROWS} answers of the hold-out have one" in every
    assert (
        "14 groups joined with another one, 1 answer left out of training, 13 in the hold-out that have one in the "
        "training data, 9 in the validation split."
    ) in section(MARKDOWN, "Data card")


@pytest.mark.parametrize(
    ("of", "says"),
    [
        ("evaluation.threshold", "31 reviews of the validation split, where 40.0 % of the answers are shown"),
        ("metrics.holdout", "31 reviews of the hold-out, where 40.0 % of the answers are shown"),
    ],
)
def test_reviews_that_chose_themselves_are_reported_apart(of: str, says: str) -> None:
    apart = {"rows": 31, "coverage": 0.4, "precision": 0.9}
    markdown = markdown_of(changed={f"{of}.self_selected": apart})
    assert says in first_lines(markdown)
    assert ("(and 31 self-selected)" in section(markdown, "Data card")) == (of == "metrics.holdout")
    assert "Self-selected" not in first_lines(MARKDOWN)


def test_what_is_guaranteed_and_the_heuristic_threshold_stand_side_by_side() -> None:
    text = first_lines(MARKDOWN)
    for part in (
        "At least 80 % of the shown answers are correct (confidence 0.9). It is void if documents change or model "
        "changes or questions change. Tested on 206 reviewed answers of the validation split about 31 documents, where 43.2 % of the answers are shown, 91.1 % of "
        "them correct; the shown ones are worth 90 independent answers (intraclass correlation 0.04); p = 0.068.",
        "0.500, just good enough on validation (56.5 % of the answers are shown, 85.1 % of them correct), which guarantees "
        "nothing: on the hold-out ",
        "the linear probe at layer 16 (residual) of smollm2-135m-instruct",
        "chosen from 2 that can be served by training answers unseen, and by cost (AUROC out of fold 0.791",
        "on 17 reviewed answers asked after the hold-out was frozen, the AUROC is 0.765",
    ):
        assert part in text
    compared = Page(PAGE).tables[1]
    assert [row[0] for row in compared[1:]] == [
        "everything shown",
        "heuristic: just good enough on validation",
        "served: guaranteed",
    ]
    assert [row[1] for row in compared[1:]] == ["none", f"{HEURISTIC:.3f}", f"{GUARANTEED:.3f}"]
    assert compared[1][4:] == ["100.0 %", "64.0 %", "36.0 %", "100.0 %"]


def test_without_a_guarantee_it_says_why_and_how_many_reviews_would_do() -> None:
    markdown, page = pages(guaranteed=False, target=0.9)
    text = first_lines(markdown)
    assert "**Asked for:** No threshold guarantees that at least 90 % of the shown answers are correct" in text
    assert "| 4,812 | more reviews needed for the guarantee |" in text
    assert "| ≥ 90 % | of the shown answers correct (aimed at, not guaranteed) |" in text
    assert "**Threshold served instead:** the heuristic one, 0.500, just good enough on validation" in text
    assert "**Guaranteed:**" not in text
    assert [row[0] for row in Page(page).tables[1][1:]] == [
        "everything shown",
        "served: heuristic, without a guarantee",
    ]
    assert "No threshold guarantees that" in section(markdown, "Model card")
    hopeless = first_lines(
        markdown_of(guaranteed=False, changed={"evaluation.threshold.guarantee.additional_reviews": None})
    )
    assert "reviews needed" not in hopeless


@pytest.mark.parametrize("options", [{}, {"metric": "error_rate", "target": 0.1}])
def test_a_guarantee_that_too_few_answers_check_is_nowhere_said_without_that(options: dict[str, Any]) -> None:
    markdown, page = pages(**options, changed=FEW)
    assert "not checked on the hold-out yet" in section(markdown, "Model card")
    assert "(confidence 0.9), not checked on the hold-out yet." in first_lines(markdown)
    assert "(guaranteed, with confidence 90 %, not checked yet)" in first_lines(markdown)
    assert Page(page).tables[1][-1][0] == "served: guaranteed, not checked yet"
    for checked in (pages(**options)[0], markdown_of(guaranteed=False, changed=FEW)):
        assert "not checked yet" not in checked and "not checked on the hold-out" not in checked


def test_a_guarantee_without_a_heuristic_threshold_is_reported() -> None:
    markdown, page = pages(heuristic=False)
    assert "**Heuristic threshold:** there is none" in first_lines(markdown)
    assert [row[0] for row in Page(page).tables[1][1:]] == ["everything shown", "served: guaranteed"]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("served", "says"),
    [
        ({"requested": "probe"}, "because serve.scorer asks for it (AUROC out of fold 0.791, 312 tokens an answer)."),
        ({}, "chosen from 2 that can be served by training answers unseen, and by cost (AUROC out of fold 0.791"),
        ({"candidates": []}, "the only scorer that can be served (AUROC out of fold not defined"),
    ],
)
def test_why_a_scorer_is_served_is_said(served: dict[str, Any], says: str) -> None:
    if "candidates" in served:
        own = {"scorer": "probe", "kind": "probe", "forward_tokens": 312.4}
        served = {"candidates": [own | dict.fromkeys(("auroc", "auroc_low", "auroc_high"))]}
    markdown = markdown_of(changed={f"evaluation.served.{key}": value for key, value in served.items()})
    assert "the linear probe at layer 16 (residual) of smollm2-135m-instruct" in first_lines(markdown)
    assert says in first_lines(markdown)


def test_what_could_be_served_stands_beside_what_cannot_and_why() -> None:
    candidates = table_of(PAGE, "scorer", "kind", "forward tokens")
    assert [row[0] for row in candidates[1:]] == ["writer", "probe"]
    assert candidates[2][1:] == ["probe", "312", "0.791 (0.701 to 0.876)", "served"]
    (other,) = table_of(PAGE, "scorer", "why")[1:]
    assert other[0] == "yes_score" and other[1].startswith("it reads a prompt of its own | <img")


def test_an_empty_newest_window_is_said() -> None:
    text = first_lines(markdown_of(changed={"metrics.newest": {"rows": 0, "auroc": None}}))
    assert "no reviewed answer yet" in text


def test_the_leaderboard_has_every_scorer_best_first_and_the_skipped_ones_with_the_reason() -> None:
    scorers = evaluated().scorers
    table = table_of(PAGE, "scorer", "kind")
    names = [row[0] for row in table[1:]]
    assert names[-3:] == ["verbalized", "entailment", "extractive_qa"]
    known = [name for name in names if name in scorers and scorers[name]["auroc"] is not None]
    assert [scorers[name]["auroc"] for name in known] == sorted((scorers[n]["auroc"] for n in known), reverse=True)
    assert set(names) == {*scorers, "entailment", "extractive_qa"}
    assert table[-2][1:] == ["skipped: no model is set: scorers.entailment_model | is null"]
    assert ("td", {"colspan": "8"}) in Page(PAGE).elements
    rows = {row[0]: row[1:] for row in table[1:]}
    probe, fusion = scorers["probe"], scorers["fusion"]
    assert rows["probe"][0] == "served probe: linear"
    assert rows["probe"][1] == f"{probe['auroc']:.3f} ({probe['auroc_low']:.3f} to {probe['auroc_high']:.3f})"
    assert rows["probe"][2:4] == ["", ""]
    assert rows["fusion"][2].startswith(format_number(fusion["auroc_difference"], "+.3f"))
    assert rows["fusion"][3] == f"{fusion['chance_better']:.0%}".replace("%", " %")
    times = [f"{fusion[f'error_recall_over_random{end}']:.2f}" for end in ("", "_low", "_high")]
    assert rows["fusion"][4:6] == [
        format_percent(fusion["error_recall_at_15pct"]),
        f"{times[0]} ({times[1]} to {times[2]})",
    ]
    assert rows["yes_score"][6:] == ["312", "7"]
    assert rows["verbalized"][1:6] == ["not defined"] * 5
    assert rows["verbalized"][7] == str(ROWS)
    every = table_of(PAGE, "scorer", "AUPRC", "Brier", "ECE", "accuracy", "F1", "AURC")
    brier = f"{probe['brier']:.3f} ({probe['brier_low']:.3f} to {probe['brier_high']:.3f})"
    assert next(row for row in every if row[0] == "probe")[2] == brier
    told = section(MARKDOWN, "Ranking of the scorers")
    assert f"which count as withheld: yes_score 7 and verbalized {ROWS}." in told
    assert "whose first word is neither yes nor no: 321 of 1,200;" in told
    assert "In all splits, 12 answers have no rank: version 2, answers (12)." in told
    assert "no rank" not in markdown_of(changed={"evaluation.unranked": ""})


def test_scorers_are_compared_on_refusals_apart() -> None:
    told = section(MARKDOWN, "Ranking of the scorers")
    assert "| scorer | answers (200) | refusals (12) |" in told
    assert "| fusion | 0.765 (0.701 to 0.812) | too few to judge |" in told
    assert "refusals (12)" not in markdown_of(changed={"evaluation.by_kind": []})
    assert "for which neither Yes nor No was probable, which count as 0.5: yes_score 12." in told
    assert "whose first word" not in markdown_of(changed={"evaluation.neither": None}), "it was not asked"
    assert "2 scorers skipped." in told


def test_everybody_is_shown_at_a_threshold_of_their_own() -> None:
    table = table_of(PAGE, "scorer", "threshold", "precision")
    rows = {row[0]: row[1:] for row in table[1:]}
    assert set(rows) == {"probe", "fusion", "verbalized"} and rows["probe"][0] == f"{HEURISTIC:.3f}"
    fusion = evaluated().evaluation["at_own_threshold"]["fusion"]
    assert rows["fusion"][:4] == [
        "0.600",
        *(format_percent(fusion[name]) for name in ("precision", "recall", "abstention_rate")),
    ]
    assert rows["verbalized"] == ["no threshold reaches precision 0.8 on 206 reviewed answers | none"]


def test_regressors_are_told_with_what_was_dropped_and_what_could_not_be_perturbed() -> None:
    title = "Correctness estimated from log-likelihoods"
    table = table_of(PAGE, "regressor", "t")
    assert table[1] == ["linear_cosine", "no t could be tuned"]
    assert table[2][:4] == ["random_forest_label", "0.55", "240", "60.0 %"]
    assert table[2][4:6] == ["0.500 (0.500 to 0.500)", "0.520 (0.520 to 0.520)"]
    told = section(MARKDOWN, title)
    assert "1 answer of 800 without any context: nothing could be perturbed" in told
    assert "23 answers of 800 with fewer tokens than were to be replaced: all were" in told
    assert "cannot be read" not in told, "there was none that was too long"
    assert "2 features do not vary in training and were dropped: 1 are constant, 1 are missing" in told
    assert "linear_cosine: no candidate for t leaves both classes" in told
    none = {"evaluation.regressors.regressors": {}}
    assert title not in render_evaluation(evaluated(changed=none))


def test_the_leaderboard_is_told_in_words() -> None:
    better = {"auroc": 0.99, "auroc_difference_low": 0.01, "auroc_difference_high": 0.09}
    changed = {f"metrics.holdout.scorers.fusion.{key}": value for key, value in better.items()}
    told = section(markdown_of(changed=changed), "Ranking of the scorers").strip()
    assert told.startswith("Best on the hold-out: **fusion, AUROC 0.990**; probe, which is served, has 0.881. Clearly")
    assert "(the whole interval of the difference): fusion. Clearly worse: 14 of 16; 1 do not differ" in told
    none = {"metrics.holdout.scorers": {name: {**row, "auroc": None} for name, row in evaluated().scorers.items()}}
    assert "AUROC is not defined on this hold-out" in markdown_of(changed=none)


def test_the_leaderboard_for_elsewhere_is_the_same_tables() -> None:
    given = evaluated()
    text = leaderboard_table(given.metrics, given.evaluation)
    assert text.strip() in MARKDOWN
    assert len(re.findall(r"^\|(?: -{3}:? \|)+$", text, re.MULTILINE)) == 2
    assert "| entailment | skipped: no model is set: scorers.entailment_model \\| is null |" in text


def test_marked_thresholds_stand_out_and_no_others() -> None:
    lines = section(MARKDOWN, "Thresholds: coverage and precision").splitlines()
    table = [line for line in lines if re.match(r"\| (\*\*)?0\.\d{3}", line)]
    assert [line.split("|")[1].strip() for line in table if "**" in line] == [
        f"**{HEURISTIC:.3f}**",
        f"**{GUARANTEED:.3f}**",
    ]
    assert [line.split("|")[2].strip() for line in table if "**" in line] == ["**heuristic**", "**guaranteed**"]
    assert len(table) == 11  # 0.0 to 0.9, one of them the heuristic one, and the guaranteed one
    threshold = table_of(PAGE, "threshold", "mark")
    assert [row[0] for row in threshold[1:] if row[1]] == [f"{HEURISTIC:.3f}", f"{GUARANTEED:.3f}"]
    assert threshold[0][-2:] == ["ROUGE-L shown", "ROUGE-L withheld"]
    assert threshold[1][-1] == "not defined (0 answers)"


def test_without_ideal_answers_there_is_no_rouge() -> None:
    given = evaluated()
    bare = given.tables["threshold"].assign(rouge_shown=float("nan"), rouge_withheld=float("nan"))
    tables = {**given.tables, "threshold": bare}
    markdown = render_evaluation(EvaluationResult(given.metrics, given.evaluation, given.dataset, tables))
    assert "ROUGE" not in section(markdown, "Thresholds: coverage and precision")


def test_other_sites_is_compared_and_out_of_reach_says_why() -> None:
    text = section(MARKDOWN, "Other layers, sites and numbers of chunks")
    assert "Best out of fold: layer 24, mlp with 0.810; the exported probe reads layer 16, residual with 0.790." in text
    assert "On the hold-out that place has 0.776, within the interval of the served one (0.710 to 0.860)." in text
    assert "| **16 (served)** | **residual** | **all** | **0.790** |" in text
    assert "no threshold reaches precision 0.85 on 197 reviewed answers" in text
    assert "Other layers, sites and numbers of chunks" not in markdown_of(changed={"evaluation.ablations": []})
    best = markdown_of(changed={"evaluation.ablations.0.out_of_fold": 0.9})
    assert "Best out of fold: layer 16, residual with 0.900, the site of the exported probe." in best


def test_calibration_and_its_intervals_are_told() -> None:
    text = section(MARKDOWN, "Calibration")
    raw, own, _ = evaluated().evaluation["calibration"]["by_method"]
    assert f"The served scorer's is {raw['ece']:.3f} as it is and {own['ece']:.3f} after isotonic calibration" in text
    assert f"| **isotonic** | **{own['ece']:.3f} ({own['ece_low']:.3f} to {own['ece_high']:.3f})** |" in text
    none = section(markdown_of(changed={"evaluation.calibration.method": "none"}), "Calibration")
    assert "The confidence is served as it is" in none


def test_slices_below_the_target_are_named_lowest_first() -> None:
    text = section(markdown_of(target=0.95), "Slices")
    judged = [row for row in evaluated().evaluation["slices"] if row["precision"] is not None]
    below = sorted((row for row in judged if row["precision"] < 0.95), key=lambda row: row["precision"])
    assert 0 < len(below) < len(judged)
    assert f"correct in {len(below)} of them, lowest first: " in text
    places = [text.index(f"({format_percent(row['precision'])})") for row in below]
    assert places == sorted(places)
    assert "In all of them at least 50 % of the shown answers are correct." in markdown_of(target=0.5)
    assert "fewer than 20 shown answers: precision not judged |" in text


def test_a_slice_that_is_not_judged_says_why_in_place_of_its_figures() -> None:
    row = {"by": "product", "slice": "Gold Card", "rows": 61, "n_eff": 60.5, "base_rate": 0.7, "shown": 30, "note": ""}
    figures = {"auroc": 0.8, "auroc_low": 0.7, "auroc_high": 0.9, "ece": 0.05, "brier": 0.2, "precision": 0.9}
    few = dict.fromkeys(figures) | {
        "slice": "Tin Card",
        "rows": 3,
        "n_eff": 2.6,
        "note": "fewer than 20 answers: not judged",
    }
    one_class = {"auroc": None, "note": "one class only"}
    slices = [row | figures, row | few, row | figures | one_class, row | figures | {"precision": None}]
    text = section(markdown_of(changed={"evaluation.slices": slices}), "Slices")
    assert [line for line in text.splitlines() if line.startswith("| product")] == [
        "| product | Gold Card | 61 | 60 | 70.0 % | 0.800 (0.700 to 0.900) | 0.050 | 0.200 | 30 | 90.0 % |",
        "| product | Tin Card | 3 | 3 | 70.0 % | fewer than 20 answers: not judged |  |  |  |  |",
        "| product | Gold Card | 61 | 60 | 70.0 % | not defined | 0.050 | 0.200 | 30 | 90.0 % (one class only) |",
        "| product | Gold Card | 61 | 60 | 70.0 % | 0.800 (0.700 to 0.900) | 0.050 | 0.200 | 30 | not defined |",
    ]
    assert "2 of 4 slices have enough shown answers to be judged." in text


def test_the_audits_are_told_in_words() -> None:
    def audit(**changed: Any) -> str:
        start = "evaluation.audits.context_removed.0."
        return section(markdown_of(changed={start + key: value for key, value in changed.items()}), "Audits")

    unsure = audit(auroc=0.881, auroc_changed=0.87, auroc_lost_low=-0.01, auroc_lost_high=0.03)
    assert "the loss is −0.010 to +0.030: on these answers no use of the context is shown" in unsure
    assert "no use of the context is shown" in audit(
        auroc=0.881, auroc_changed=0.7, auroc_lost_low=None, auroc_lost_high=None
    )
    sure = {"auroc": 0.8, "auroc_lost_low": 0.1}
    assert "from 0.800 to 0.620: 40 % of its advantage over guessing remains" in audit(auroc_changed=0.62, **sure)
    assert "0 % of its advantage over guessing remains" in audit(auroc_changed=0.45, **sure)
    assert "no better than guessing with it" in audit(auroc=0.5, auroc_changed=0.4)
    assert "Of the served scorer this is not defined" in audit(auroc_changed=None)
    text = audit()
    assert "it loses 0.111 AUROC on average; clearly (the whole interval of the loss) on Gold Card." in text
    assert "So the served scorer uses more than the length of an answer." in text
    length = {"metrics.holdout.scorers.length_only.auroc_difference_high": 0.01}
    assert "not shown to use more than the length of an answer: be careful" in markdown_of(changed=length)
    shuffled = {"evaluation.audits.answers_shuffled.0.shown_changed": 0.99}
    assert "it does not detect that they answer another question" in markdown_of(changed=shuffled)


def test_examples_show_what_was_caught_missed_and_withheld() -> None:
    text = section(MARKDOWN, "Examples")
    assert [line for line in text.splitlines() if line.startswith("### ")] == [
        "### Errors caught",
        "### Errors missed",
        "### Correct answers withheld",
    ]
    found = evaluated().evaluation["examples"]
    assert len(re.findall(r"^\d\. Confidence 0\.\d{3} · ", text, re.MULTILINE)) == sum(map(len, found.values()))
    assert text.count("**Reviewer's answer:** ") == sum(
        row["ideal_answer"] is not None for of in found.values() for row in of
    )
    nothing = {f"evaluation.examples.{kind}": [] for kind in found}
    assert section(markdown_of(changed=nothing), "Examples").count("None on the hold-out.") == 3


def test_the_cards_keep_what_is_known_of_model_and_data() -> None:
    model, data = section(MARKDOWN, "Model card"), section(MARKDOWN, "Data card")
    for part in (
        "| probe reads | layer 16, residual, answer and EOS tokens |",
        "| prompt layout | rag-chatml-v1 |",
        "| probe | linear: logistic regression on the mean and the last state |",
        "| trained on | 1,234 answers of 56 groups |",
        f"| threshold | {GUARANTEED:.6f} |",
        "| calibration | isotonic, on the validation split |",
    ):
        assert part in model
    for part in (
        "| train | 1,234 | 56 | 60.0 % | 78 |",
        "| newest | 0 | 0 | not defined | 0 |",
        "| answers | 1,200 | 56 | 62.0 % | 70 |",
        "| refusals | 34 | 9 | 25.0 % | 8 |",
        "Labels: 9 reviewed, 8 thumb and 0 tied thumbs.",
        "Weights of thumbs: estimated, agreement (40 answers have both).",
        "Of 120 users whose thumbs make training labels, the one with most has 31.0 % of their weight, cut to 5.0 % "
        "(labels.max_user_share).",
        "Nobody contradicts the others beyond chance, of 3 users",
        "| up | 31 | 7 | 81.5 % (70.0 % to 90.0 %) |",
        "Reviews disagree on 3 answers (rule: latest); thumbs contradict the reviewers on 11.",
        "had a higher chance of being reviewed than others",
        "1 / inclusion probability",
    ):
        assert part in data
    even = section(markdown_of(changed={"metrics.holdout.sampled_unevenly": 0}), "Data card")
    assert "inclusion probability" not in even
    assert "All of them were equally likely to be reviewed." in even
    none = markdown_of(changed={"dataset.kinds.1.answers": 0})
    assert "| refusals |" not in none
    wrong = {"message": "reviewer r-01234567 in batch 000002: 41 of 45"}
    named = section(markdown_of(changed={"dataset.contradicting": {"tested": 3, "named": [wrong]}}), "Data card")
    assert "A112" in named and "r-01234567 in batch 000002: 41 of 45" in named and "Nobody" not in named
    nobody = {"users": 0, "limit": 1.0, "before": 0.0, "after": 0.0}
    thumbs = {"weights": "fixed", "reason": "2 answers have both", "largest_share": nobody}
    fixed = markdown_of(changed={"dataset.thumbs": thumbs})
    assert "reviewers agree" not in fixed


TAGS = {
    "html", "head", "meta", "link", "title", "style", "body", "main", "section", "nav", "h1", "h2", "h3", "p", "span",
    "strong", "ul", "ol", "li", "a", "div", "table", "caption", "thead", "tbody", "tr", "th", "td", "figure",
    "figcaption", "img", "bdi",
}  # fmt: skip
BLOCKS = ("heading", "paragraph", "table", "thead", "tbody", "tr", "th", "td")
PLAIN = {
    *("inline", "text", "text_special"),
    *(f"{part}_{end}" for part in BLOCKS for end in ("open", "close")),
}
MARKED = ("strong", "em", "bullet_list", "ordered_list", "list_item")
TOKENS = {*PLAIN, "softbreak", "image", *(f"{part}_{end}" for part in MARKED for end in ("open", "close"))}
"""All that a page, texts and tables in Markdown, and a whole report in Markdown are made of."""
VARIANTS: list[dict[str, Any]] = [
    {},
    {"guaranteed": False},
    {"heuristic": False},
    {"metric": "error_rate", "target": 0.1},
]


@pytest.mark.parametrize("options", VARIANTS)
def test_both_renderings_say_the_same_and_no_number_for_what_is_undefined(options: dict[str, Any]) -> None:
    """Word by word, but for the contents' links."""
    undefined = {
        "metrics.newest.auroc": None,
        "metrics.holdout.at_threshold.precision": None,
        "metrics.holdout.at_threshold.recall": None,
        "metrics.holdout.scorers.probe": dict.fromkeys(evaluated().served_row, None) | {"unscored": 0},
        "evaluation.calibration.by_method.0.ece": None,
        "evaluation.audits.answers_shuffled.0.auroc_against_shuffled": None,
        "evaluation.served.out_of_fold": {"linear": None, "lstm": None},
    }
    markdown, page = pages(**options, changed=undefined)
    assert said_on_page(page) == said_in_markdown(markdown)
    assert not {"nan", "None", "inf"} & set(words(shown(markdown)))
    assert "| not defined | AUROC of the served scorer (95 % interval no interval) |" in markdown
    assert "the AUROC is not defined" in markdown


def test_what_people_wrote_is_text_in_the_page() -> None:
    page = Page(PAGE)
    assert said_on_page(PAGE) == said_in_markdown(MARKDOWN)
    assert set(page.tags) <= TAGS
    assert not [name for _, attrs in page.elements for name in attrs if name.startswith("on")]
    addresses = page.attributes("href") + page.attributes("src")
    assert all(address.startswith(("#", "data:")) for address in addresses)
    assert len(page.attributes("src")) == len(PLOTS)
    assert not re.search(r"url\(|@import", PAGE)
    told = page.of("bdi")
    for text in NASTY[:4]:
        assert to_single_line(text) in told


def test_what_people_wrote_is_text_in_markdown() -> None:
    found = tokens(MARKDOWN)
    assert {token.type for token in found} <= TOKENS
    images = [str(token.attrs["src"]) for token in found if token.type == "image"]
    assert sorted(images) == sorted(f"{name}.svg" for name in PLOTS)
    assert {token.content for token in found if token.type == "em_open"} == {""}
    for text in NASTY[:4]:
        assert to_single_line(text) in "".join(token.content for token in found if token.type.startswith("text"))


def test_the_page_has_no_link_image_or_element_that_the_markdown_asks_for() -> None:
    asked = [f"a {LINK} b", TAG, "![x](other.svg)", "![y](data:image/png;base64,AA==)", "&lt;i&gt;", "```", TAG, "```"]
    page = Page(render_html(one_of(*asked), IMAGES))
    assert page.attributes("href") == ["data:,", "#only"]
    assert page.attributes("src") == []
    assert not {"script", "i", "code", "pre"} & {tag for tag, _ in page.elements}
    assert "&lt;i&gt;" in " ".join(text for _, text in page.texts), "an entity is text, too"


def test_a_warning_stands_above_the_verdict_as_text() -> None:
    warning = f"trained on erased rows since 2026-11-20; kept on purpose: {' '.join(NASTY)}"
    page = render_html(f"{paragraph(bold(warning))}\n\n{MARKDOWN}", IMAGES)
    said = Page(page).texts
    at_verdict = next(at for at, (tag, text) in enumerate(said) if tag == "h2" and "Guarantee kept" in text)
    assert said.index(("strong", to_single_line(warning))) < at_verdict
    ((_, inline, _),) = [READER.parse(paragraph(bold(warning)))]
    assert inline.children is not None
    assert [child.type for child in inline.children if child.type != "text"] == ["strong_open", "strong_close"]
    assert "".join(child.content for child in inline.children) == to_single_line(warning)


def test_tables_are_whole_in_markdown() -> None:
    """No cell is lost or won by what is written in it."""
    lines = MARKDOWN.splitlines()
    tables = Page(READER.render(MARKDOWN)).tables
    drawn = [line for line in lines if re.fullmatch(r"\|( -{3}:? \|)+", line)]
    assert len(tables) == len(drawn) == len(Page(PAGE).tables)
    for rows, line in zip(tables, drawn, strict=True):
        assert {len(row) for row in rows} == {line.count("---")}
        assert rows[1:]
    spanning = [row[-1] for table in Page(PAGE).tables for row in table if len(row) < len(table[0])]
    assert spanning and not [text for text in spanning if re.match(r"[+−]?\d", text)], (
        "a figure has a column of its own"
    )
    names = [row[0] for table in tables for row in table]
    assert f"mine | {TAG}" in names


@given(st.text() | st.lists(st.sampled_from([*"\\`*_[]<>|~&$#!():@/.-+=1a ", "://", "www.", "\n"])).map("".join))
@example("1. a")
@example("a_b _c_ __d__")
@example("**")
@example("\r-")
@example("\ud800\x00")
def test_any_text_reads_in_markdown_as_it_was_written(text: str) -> None:
    markdown = one_of(paragraph(text), table(("a", "b"), [("r", text), ("s", f"{text} (below)")]))
    found = tokens(markdown)
    assert {token.type for token in found} <= PLAIN
    assert sum(token.type == "heading_open" for token in found) == 3
    inner = to_single_line(text).strip()
    cells = [row for grid in Page(READER.render(markdown)).tables for row in grid[1:]]
    assert [len(row) for row in cells] == [2, 2]
    assert cells[0][1].strip() == inner
    assert cells[1][1].split() == [*inner.split(), "(below)"]
    assert inner in "".join(token.content for token in found if token.type.startswith("text"))


@given(st.text())
def test_any_text_reads_in_the_page_as_it_was_written(text: str) -> None:
    page = render_html(one_of(paragraph(text, " ", bold(text)), table(("a",), [(text,)], text)), IMAGES)
    parsed = Page(page)
    assert parsed.tables[0][1][0].strip() == to_single_line(text).strip().replace("\xa0", " ")
    assert page.encode()


def one_of(*blocks: str) -> str:
    first = [heading(1, "title"), paragraph("about"), *headline_section("passed", "kept", [])]
    return document([*first, heading(2, "Only"), *blocks])


def test_the_page_is_in_order_for_those_who_hear_it() -> None:
    page = Page(PAGE)
    assert ("html", {"lang": "en"}) in page.elements
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert {attrs.get("scope") for tag, attrs in page.elements if tag == "th"} == {"col", "row"}
    captions = [text for tag, text in page.texts if tag == "span"]
    boxes = [attrs for _, attrs in page.elements if attrs.get("class") == "scroll"]
    assert len(boxes) == len(page.tables) - 1  # the key figures fit into any window
    for box in boxes:
        assert box["tabindex"] == "0"
        assert box["role"] == "region"
        assert str(box["aria-label"]).replace("\xa0", " ") in captions
    alts = page.attributes("alt")
    assert len(alts) == len(PLOTS)
    assert all(re.search(r"\d", alt) and len(alt) > 40 for alt in alts)
    ids = page.attributes("id")
    assert len(ids) == len(set(ids))
    assert {address[1:] for address in page.attributes("href") if address != "data:,"} <= set(ids)


def test_what_a_plot_shows_is_what_the_figures_say() -> None:
    alts = dict(zip(PLOTS, range(len(PLOTS)), strict=True))
    assert len(alts) == 7
    shows = {token.attrs["src"]: token.content for token in tokens(MARKDOWN) if token.type == "image"}
    given = evaluated()
    assert f"{given.served_row['auroc']:.3f}" in str(shows["leaderboard.svg"])
    assert "verbalized not defined" in str(shows["leaderboard.svg"])
    at = given.at_threshold
    guaranteed = (
        f"at the guaranteed threshold {GUARANTEED:.3f}, {format_percent(at['coverage'])} of the answers are shown"
    )
    assert guaranteed in str(shows["threshold.svg"])
    wrong = at["coverage"] * (1 - at["precision"]) / (1 - given.holdout["base_rate"])
    assert f"{format_percent(at['recall'])} of the correct answers and {format_percent(wrong)} of the incorrect" in str(
        shows["confidence.svg"]
    )
    assert "raw, where 5 % are said to be correct, 20 % are (10 answers)" not in str(shows["reliability.svg"])
    assert "calibrated, where 95 % are said to be correct, 68 % are (46 answers)" in str(shows["reliability.svg"])


def test_where_no_file_lies_beside_it_plots_can_be_told_in_words() -> None:
    told = replace_images(MARKDOWN)
    assert "image" not in {token.type for token in tokens(told)}
    assert words(shown(told)) == words(shown(MARKDOWN))


def test_equal_input_is_equal_bytes() -> None:
    assert pages() == (MARKDOWN, PAGE)


def test_a_markdown_table_has_one_line_a_row() -> None:
    records = records_table(
        [
            {"a": 1, "b": "x | y\nz", "c": 0.25, "d": LINK},
            {"a": 2, "b": bold("failed"), "c": None, "d": TAG},
            {"a": 3, "b": bold("a*b"), "c": float("nan"), "d": ""},
        ],
        text_columns=("d",),
    )
    assert records.splitlines()[:2] == ["| a | b | c | d |", "| --- | ---: | ---: | --- |"]
    assert len(records.splitlines()) == 5
    assert "| 1 | x \\| y z | 0.25 |" in records
    assert "| 2 | **failed** | not defined |" in records
    assert "| 3 | **a\\*b** | not defined |  |" in records
    assert not {"link_open", "html_inline"} & {token.type for token in tokens(records)}


@pytest.mark.parametrize(
    ("value", "target", "text"),
    [(0.8501, 0.85, "85.01 %"), (0.84999, 0.85, "84.999 %"), (0.85, 0.85, "85.0 %"), (0.7, 0.85, "70.0 %")],
)
def test_a_figure_beside_its_target_has_the_digits_it_takes(value: float, target: float, text: str) -> None:
    assert format_percent_near(value, target) == text
    assert format_percent_near(None, target) == "not defined"


def test_a_fusion_that_hears_nobody_is_told() -> None:
    fusion = {"strength": 1e-4, "coefficients": {"a": 0.0}, "missing": {"a": 0.0}}
    deaf = markdown_of(changed={"evaluation.fusion": fusion})
    assert "The fusion uses no score: none separates correct training answers from incorrect ones." in deaf
    assert "uses no score" not in MARKDOWN
