"""The study of Self-Familiarity: resumed, judged by a local server and by people, by a tiny model."""

import csv
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import yaml

from abstain.config.settings import Settings
from abstain.core.contracts import Context, Interaction
from abstain.core.errors import AbstainError
from studies.self_familiarity import baselines as familiarity_baselines
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
from tests.llm.builders import save_tiny_model
from tests.studies.builders import run_parts, write_lines

DECLARED = yaml.safe_load((ROOT / "studies" / "self_familiarity.yaml").read_text())
REAL = {"Mount Etna": True, "Zorvian Ledger": False, "Magna Carta": True, "Quorble Flux": False}
CONCEPTS = [ConceptInstruction(name, "", name, (name,), background="It is.") for name in ("Mount Etna", "Magna Carta")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("familiar") / "tiny", max_position_embeddings=2048)


@pytest.fixture
def short_similarity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(familiarity_baselines, "mean_similarity", lambda texts, by: float(len(set(texts))))


def write_data(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    rows = [{"concept_id": name, "concept": name, "domain": "Art", "real": real} for name, real in REAL.items()]
    write_lines(folder / "concepts.jsonl", rows)
    write_lines(
        folder / "questions.jsonl",
        [
            {"question_id": name, "concept_id": name, "question": f"What is {name} known for?", "entities": [name]}
            for name in REAL
        ],
    )
    write_lines(folder / "common.jsonl", [{"concept": name} for name in ("Rain", "Bread", "Gravity")])
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


class JudgeHandler(BaseHTTPRequestHandler):
    """Answers every request with the server's `status`, `headers` and `content`, and notes it."""

    def do_POST(self) -> None:
        server: Any = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.requests.append((self.path, self.headers.get("Authorization"), body))
        self.send_response(server.status)
        for name, value in server.extra_headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(server.content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def judge() -> Iterator[Any]:
    server: Any = HTTPServer(("127.0.0.1", 0), JudgeHandler)
    server.requests, server.status, server.extra_headers = [], 200, {}
    server.content = reply("My score: 7")
    server.service = JudgeService(url=f"http://127.0.0.1:{server.server_port}/v1", model="judge", key_env="JUDGE_KEY")
    Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def reply(text: str) -> bytes:
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()


def rate(judge: Any) -> list[float | None]:
    return ExplanationJudge(judge.service).rate(CONCEPTS, ["A volcano.", ""], lambda done, total: None)


def test_judge_rates_each_explanation(judge: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "secret")
    assert rate(judge) == [7.0, 7.0]
    path, key, body = judge.requests[0]
    prompt = body["messages"][0]["content"]
    assert path == "/v1/chat/completions" and key == "Bearer secret" and body["model"] == "judge"
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
    judge: Any, monkeypatch: pytest.MonkeyPatch, status: int, headers: dict[str, str], content: bytes, says: str
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "secret")
    judge.status, judge.extra_headers, judge.content = status, headers, content
    with pytest.raises(AbstainError, match=says) as error:
        rate(judge)
    assert "secret" not in str(error.value) and "\n" not in str(error.value) and len(judge.requests) == 1


def test_judge_without_key_asks_nothing(judge: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_KEY", raising=False)
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
    interactions = tuple(
        Interaction(
            interaction_id=str(n),
            asked_at="2026-01-01T00:00:00Z",
            question="What?",
            answer="A fee.",
            contexts=(text,),
            model="m",
        )
        for n in rows
    )
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
    tmp_path: Path, model: Path, short_similarity: None, judge: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "secret")
    parts, service = tmp_path / "parts", judge.service.model_dump()
    judge.status = 503
    study = load(tmp_path, model, judge=service, concepts=["extracted", "data"], part=9)
    outcomes, _ = run_parts(study, parts)
    report = study.make_report((), outcomes)
    assert "it answers 503" in report.markdown and len(report.document["tables"]["5"][0]["methods"]) == 8
    titles = [section["title"] for section in report.document["tables"]["2"]]
    assert titles[0].endswith("concepts as extracted") and titles[1].endswith("concepts of the data")
    judge.status = 200
    outcomes, computed = run_parts(study, parts)
    assert computed and all(title.startswith("judgement of") for title in computed)
    concepts, *questions = study.make_report(["judged"], outcomes).document["tables"]["judged"]
    assert concepts["instructions"] == 4 and concepts["familiar"] == 2 and len(questions) == 2
    assert run_parts(study, parts)[1] == []

    sheet = tmp_path / "sheet.csv"
    by_people = load(tmp_path, model, worksheet=str(sheet), part=9)
    outcomes, _ = run_parts(by_people, parts)
    assert "has no score yet: write 1 to 9" in by_people.make_report(["judged"], outcomes).markdown
    rows = list(csv.DictReader(sheet.open(newline="")))
    with sheet.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(row | {"score": score} for row, score in zip(rows, ("8", "3"), strict=True))
    by_people = load(tmp_path, model, worksheet=str(sheet), part=9)
    outcomes, _ = run_parts(by_people, parts)
    concepts, _ = by_people.make_report(["judged"], outcomes).document["tables"]["judged"]
    assert concepts["instructions"] == 4 and concepts["familiar"] == 1
