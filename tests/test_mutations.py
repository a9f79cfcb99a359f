"""The list of mutations fits the code as it stands; `make mutations` tries whether the tests catch them."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.mutations import ROOT, Mutation, read_mutations

MUTATIONS = read_mutations()
AREAS = {
    *("metrics", "bootstrap", "duplicates", "labels", "splits", "promotion", "risk control", "calibration", "engine"),
    *("perturbation", "NLL features", "scorers", "fusion and folds", "regressors", "feature cache", "privacy", "codes"),
    *("review", "quarantine", "erasure", "drift", "validation", "registry", "files", "knowledge", "serving", "upgrade"),
    "shadow",
    "choice of what is served",
    "security",
    "familiarity",
    "decision log",
    "retention",
    "automations",
}


def test_there_are_many_in_every_area() -> None:
    assert len(MUTATIONS) >= 80
    counts = Counter(mutation.area for mutation in MUTATIONS)
    assert counts.keys() == AREAS and min(counts.values()) >= 2
    assert max(Counter(mutation.defect for mutation in MUTATIONS).values()) == 1


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.defect)
def test_a_mutation_fits_the_code(mutation: Mutation) -> None:
    text = (ROOT / mutation.file).read_text(encoding="utf-8")
    changed = mutation.applied(text)
    assert changed != text
    compile(changed, mutation.file, "exec")
    assert mutation.tests and all((ROOT / test.split("::")[0]).is_file() for test in mutation.tests)


def test_what_is_to_be_replaced_stands_there_once() -> None:
    mutation = Mutation("promotion", "Nothing fails.", "promotion.py", "a > b", "a >= b", ("tests/test_mutations.py",))
    assert mutation.applied("x = a > b\n") == "x = a >= b\n"
    for text in ("", "a > b or a > b"):
        with pytest.raises(
            ValueError, match=r"^Nothing fails\. What is to be replaced stands [02] times in promotion.py"
        ):
            mutation.applied(text)
    assert (
        mutation.has_any(["PROMOTION"]) and mutation.has_any(["splits", "nothing"]) and not mutation.has_any(["splits"])
    )
