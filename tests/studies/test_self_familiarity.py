"""The study of Self-Familiarity: resumed, judged by a model and by people, by a tiny model."""

import csv
import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest
import yaml

from abstain.config.settings import Settings
from abstain.core.contracts import Context
from abstain.core.errors import AbstainError
from studies.self_familiarity import load_study
from studies.self_familiarity.answer_tables import get_answer_title, tabulate_answers
from studies.self_familiarity.answers import AnswerBatch
from studies.self_familiarity.comparison import LabelledScores, compare_methods
from studies.self_familiarity.concept7 import ConceptInstruction
from studies.self_familiarity.declared import FamiliarityDeclaration, JudgeService
from studies.self_familiarity.judge import MAX_BYTES, ExplanationJudge, parse_score
from studies.self_familiarity.study import ConceptStudy
from studies.self_familiarity.worksheet import read_scores, write_worksheet
from studies.study import Outcome, StudySource
from tests.checkout import ROOT
from tests.factories import interaction, write_lines
from tests.studies.builders import run_parts

DECLARED = yaml.safe_load((ROOT / "studies" / "self_familiarity.yaml").read_text())
REAL = {"Mount Etna": True, "Zorvian Ledger": False, "Magna Carta": True, "Quorble Flux": False}
CONCEPTS = [ConceptInstruction(name, "", name, (name,), background="It is.") for name in ("Mount Etna", "Magna Carta")]


def write_data(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    rows = [{"concept_id": name, "concept": name, "domain": "Art", "real": real} for name, real in REAL.items()]
    write_lines(folder / "concepts.jsonl", *rows)
    asked = {name: {"question": f"What is {name} known for?", "entities": [name]} for name in REAL}
    questions = [{"question_id": name, "concept_id": name, **fields} for name, fields in asked.items()]
    write_lines(folder / "questions.jsonl", *questions)
    write_lines(folder / "common.jsonl", *({"concept": name} for name in ("Rain", "Bread", "Gravity")))
    return folder


def load(folder: Path, model: Path, sizes: dict[str, tuple[int, int]] | None = None, **changes: Any) -> ConceptStudy:
    content = DECLARED | {
        "files": {name: f"{name}.jsonl" for name in ("concepts", "questions", "common")},
        "model": str(model),
        "draws": 100,
        "part": 1,
        "familiarity": {"explanation_tokens": 4, "beams": 2, "guess_tokens": 16},
        "baselines": {"reply_tokens": 4, "samples": 2, "sample_tokens": 2},
    }
    file = folder / "self_familiarity.yaml"
    file.write_text(yaml.safe_dump(content | changes))
    settings = Settings(home=folder / "home", device="cpu", dtype="float32")
    study = load_study(file, StudySource(data=write_data(folder / "data")), sizes or {}, settings, None)
    assert isinstance(study, ConceptStudy)
    return study


def reply(text: str) -> bytes:
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Answers every request with `status`, `headers` and `content`, and notes it."""
    service = JudgeService(url="http://judge/v1", model="judge", key_env="JUDGE_KEY")
    judge = SimpleNamespace(service=service, status=200, headers={}, content=reply("My score: 7"), requests=[])

    def answer(request: httpx.Request) -> httpx.Response:
        judge.requests.append(request)
        return httpx.Response(judge.status, headers=judge.headers, content=judge.content)

    monkeypatch.setattr(httpx, "Client", partial(httpx.Client, transport=httpx.MockTransport(answer)))
    monkeypatch.setenv("JUDGE_KEY", "secret")
    return judge


def rate(judge: SimpleNamespace) -> list[float | None]:
    return ExplanationJudge(judge.service).rate(CONCEPTS, ["A volcano.", ""], lambda done, total: None)


def test_judge_rates_each_explanation(judge: SimpleNamespace) -> None:
    assert rate(judge) == [7.0, 7.0]
    request = judge.requests[0]
    body = json.loads(request.content)
    prompt = body["messages"][0]["content"]
    assert request.url == "http://judge/v1/chat/completions" and request.headers["Authorization"] == "Bearer secret"
    assert body["model"] == "judge"
    assert "Mount Etna" in prompt and "It is." in prompt and "A volcano." in prompt
    judge.content = reply("I cannot say.")
    assert rate(judge) == [None, None]


@pytest.mark.parametrize(
    ("status", "headers", "content", "says"),
    [
        (302, {"Location": "http://127.0.0.1:9/"}, b"", "it answers 302, a redirect"),
        (500, {}, b"", "it answers 500"),
        (200, {}, b"{}", "its reply is no chat completion"),
        (200, {}, b" " * (MAX_BYTES + 1), "its reply is longer than"),
    ],
)
def test_judge_that_gives_no_score_is_one_line(
    judge: SimpleNamespace, status: int, headers: dict[str, str], content: bytes, says: str
) -> None:
    judge.status, judge.headers, judge.content = status, headers, content
    with pytest.raises(AbstainError, match=says) as error:
        rate(judge)
    assert "secret" not in str(error.value) and len(judge.requests) == 1


def test_judge_without_key_asks_nothing(judge: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_KEY")
    with pytest.raises(AbstainError, match="environment variable JUDGE_KEY is not set"):
        rate(judge)
    assert judge.requests == []


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "https://", "https://me:secret@host/v1", "https://host/?key=secret"]
)
def test_judge_url_is_checked_and_not_quoted(tmp_path: Path, model: Path, url: str) -> None:
    with pytest.raises(AbstainError, match="not an http") as error:
        load(tmp_path, model, judge={"url": url, "model": "m"})
    assert "secret" not in str(error.value)
    with pytest.raises(AbstainError, match="name one of the two"):
        load(tmp_path, model, judge={"url": "http://host/v1", "model": "m"}, worksheet="sheet.csv")


@pytest.mark.parametrize(
    ("text", "score"), [("7", 7), ("Score: 8/9", 8), ("**9**.", 9), ("10", None), ("2024", None), ("6.0", 6)]
)
def test_score_is_the_first_number_from_one_to_nine(text: str, score: float | None) -> None:
    assert parse_score(text) == score


def test_worksheet_holds_what_people_wrote(tmp_path: Path) -> None:
    file, texts = tmp_path / "sheet.csv", ["=A volcano.", "A\ncharter."]
    write_worksheet(file, CONCEPTS[:1], texts[:1])
    assert read_scores(file, CONCEPTS) == [None, None]
    file.write_text(file.read_text().replace("volcano.,", 'volcano.,"6,5"'))
    write_worksheet(file, CONCEPTS, texts)
    assert read_scores(file, CONCEPTS) == [6.5, None]
    rows = list(csv.DictReader(file.open(newline="")))
    assert [row["explanation"] for row in rows] == ["'=A volcano.", "A\ncharter."]
    with pytest.raises(AbstainError, match="explanation of Magna Carta is of another model"):
        write_worksheet(file, CONCEPTS, [texts[0], "Another."])
    file.write_text(file.read_text().replace("6,5", "12"))
    with pytest.raises(AbstainError, match="score of Mount Etna is '12': write a number from 1 to 9"):
        read_scores(file, CONCEPTS)


def test_methods_are_compared_on_the_same_concepts() -> None:
    label, groups = np.tile([1, 0], 20), np.repeat(np.arange(20), 2).astype(str)
    scores = {"Self-Familiarity": label * 0.6 + 0.2, "worse": np.where(label == 1, 0.2, np.nan)}
    table = LabelledScores(label, label * 8.0 + 1, groups, scores, {"Self-Familiarity": 0.5})
    best, worse = compare_methods(table, 100, 0)
    assert best["auc"] == best["accuracy"] == best["f1"] == pytest.approx(1) == pytest.approx(best["pearson"])
    assert worse["auc"] == pytest.approx(0.5) and worse["ahead"] == pytest.approx(0.5) and worse["unscored"] == 20
    assert np.isnan(worse["accuracy"])


def test_answers_are_compared_by_their_reviews() -> None:
    text = Context(chunk_id="c", text="A fee.")
    rows = range(40)
    interactions = tuple(interaction(str(n), contexts=(text,)) for n in rows)
    correct = np.tile([1, 0], 20)
    batch = AnswerBatch(0, interactions, correct, np.array([f"g{n // 4}" for n in rows]), np.ones(40))
    values = {"familiarity": (0.3 + 0.4 * correct).tolist(), "log_probs": {"mean": (np.arange(40) / 40).tolist()}}
    outcomes = {get_answer_title(batch): Outcome(values), "threshold h": Outcome({"threshold": 0.5})}
    declared = FamiliarityDeclaration.model_validate(DECLARED)
    whole, informed = tabulate_answers(declared, "m", [batch], [], outcomes)["tables"]["answers"]
    aurocs = {row["score"]: row["auroc"] for row in whole["rows"]}
    assert aurocs["familiarity"] == pytest.approx(1) and whole["below"] == pytest.approx(0.5)
    assert whole["answers"] == 40 and whole["groups"] == 10 and whole["gain"] > 0
    assert "--size answers=" in informed["missing"]


@pytest.mark.heavy
def test_familiarity_study_stopped_goes_on(tmp_path: Path, model: Path, short_similarity: None) -> None:
    parts, sizes = tmp_path / "parts", {"questions": (1, 1), "concepts": (1, 2)}
    outcomes, first = run_parts(load(tmp_path, model, sizes), parts, limit=6)
    report = load(tmp_path, model, sizes).make_report((), outcomes).document["tables"]
    assert len(first) == 6 and report["5"][0]["missing"] == "it was not computed"
    assert report["4"][0]["instructions"] == report["4"][0]["total"] == 2
    larger = load(tmp_path, model, sizes | {"questions": (2, 1)})
    outcomes, rest = run_parts(larger, parts)
    assert not set(first) & set(rest) and len(outcomes) == len(first) + len(rest)
    report = larger.make_report((), outcomes)
    tables = report.document["tables"]
    assert len(tables["5"][0]["methods"]) == len(tables["2"][0]["methods"]) == 8
    ablations = [row["method"] for row in tables["4"][0]["methods"]]
    assert tables["2"][0]["instructions"] == 3 and ablations[3:5] == ["without ranking", "minimum only"]
    assert "It holds 3 of 3 instructions" in report.markdown and "name judge or worksheet in" in report.markdown
    assert "familiarity.svg" in report.figures


@pytest.mark.heavy
def test_familiarity_study_judges_by_server_or_people(
    tmp_path: Path, model: Path, short_similarity: None, judge: SimpleNamespace
) -> None:
    parts, service = tmp_path / "parts", judge.service.model_dump()
    study = load(tmp_path, model, judge=service, concepts=["extracted", "data"], part=9)
    outcomes, _ = run_parts(study, parts)
    tables = study.make_report((), outcomes).document["tables"]
    titles = [section["title"] for section in tables["2"]]
    assert titles[0].endswith("concepts as extracted") and titles[1].endswith("concepts of the data")
    concepts, *questions = tables["judged"]
    assert concepts["instructions"] == 4 and concepts["familiar"] == 2 and len(questions) == 2
    assert run_parts(study, parts)[1] == []

    sheet = tmp_path / "sheet.csv"
    by_people = load(tmp_path, model, worksheet=str(sheet), part=9)
    outcomes, _ = run_parts(by_people, parts)
    assert "has no score yet: write 1 to 9" in by_people.make_report(["judged"], outcomes).markdown
    pd.read_csv(sheet, keep_default_na=False).assign(score=[8, 3]).to_csv(sheet, index=False)
    by_people = load(tmp_path, model, worksheet=str(sheet), part=9)
    outcomes, _ = run_parts(by_people, parts)
    concepts, _ = by_people.make_report(["judged"], outcomes).document["tables"]["judged"]
    assert concepts["instructions"] == 4 and concepts["familiar"] == 1
