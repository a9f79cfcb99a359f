import pytest

from abstain.core.errors import AbstainError
from abstain.llm.engine.prompts import Layout, Segment, load_layout

SOURCE = (
    '- {segment: turn, literal: "Q: "}\n- {segment: question, field: question}\n- {segment: answer, field: answer}\n'
)


def test_render_keeps_order_and_marks_literals() -> None:
    layout = load_layout("rag-chatml-v1")
    pass_ = layout.render("Why?", ["one", "two"], "Because.")
    assert [s.name for s in pass_] == ["instruction", "context", "question_mark", "question", "turn", "answer", "eos"]
    assert [s.name for s in pass_ if s.literal] == ["instruction", "question_mark", "turn"]
    assert [s.text for s in pass_ if not s.literal] == ["one\n\ntwo", "Why?", "Because.", ""]
    assert pass_[-1] == Segment("eos", eos=True)


def test_render_without_answer_ends_before_it() -> None:
    layout = load_layout("rag-chatml-v1")
    prompt = layout.render("Why?", [], None)
    assert prompt == layout.render("Why?", [], "anything")[: len(prompt)]
    assert prompt[-1].text.endswith("<|im_start|>assistant\n")


def test_layout_digest_changes_with_entries_only() -> None:
    digest = Layout("a", SOURCE).digest
    assert digest == Layout("b", "# another comment\n" + SOURCE.replace("\n", "  # here too\n")).digest
    assert digest != Layout("a", SOURCE.replace("Q: ", "Q:")).digest
    assert digest != Layout("a", SOURCE.replace("segment: turn", "segment: mark")).digest
    assert digest != Layout("a", "".join(reversed(SOURCE.splitlines(keepends=True)))).digest
    assert digest != Layout("a", SOURCE + "- {segment: eos}\n").digest
    assert len(digest) == 64


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("rag-chatml-v1", "1a7f4f189d7e7afe3a9ca70e47c4fc437f056c1957e8fce380d5f1bde5f65116"),
        ("rag-plain-v1", "8a47475fcbe57ff9f8841807027b4754e9d53087946948f8eb3999be297ff003"),
        ("qa-plain-v1", "d3b9827a4026c94428b83278384174193102ecdbd0907356146e9fbdae8e3251"),
    ],
)
def test_layout_digests_of_published_layouts(name: str, digest: str) -> None:
    assert load_layout(name).digest == digest


@pytest.mark.parametrize("name", ["rag-chatml-v9", "", "../layout"])
def test_load_layout_unknown_name_lists_the_known(name: str) -> None:
    with pytest.raises(AbstainError, match=rf"no prompt layout '{name}' in .*: there are ") as caught:
        load_layout(name)
    known = str(caught.value).rpartition(": there are ")[2].split(", ")
    assert known == sorted(known)
    assert {"qa-plain-v1", "rag-chatml-v1", "rag-plain-v1"} <= {*known}
    assert all(load_layout(one).name == one for one in known)


def test_layout_with_literal_eos_ends_an_answer_with_it() -> None:
    pass_ = load_layout("qa-plain-v1").render("Why?", ["one"], "Because.")
    assert pass_[-1] == Segment("eos", "\n\n", literal=True)
    assert not any(segment.eos for segment in pass_)
    asked = load_layout("after-qa-plain-v1", "questions").render("Why?", ["one"], "Because.")
    assert "".join(segment.text for segment in (*pass_, *asked)).endswith(
        "Question:\nWhy?\nAnswer:\nBecause.\n\n"
        "Question:\nIs the provided Response correct? Answer only Yes or No.\nAnswer:\n"
    )


@pytest.mark.parametrize(
    ("written", "answer"),
    [
        ("Elsa Varga\n\nContext:\nThe", "Elsa Varga"),
        ("one line\nand another\n\n\nContext:", "one line\nand another"),
        ("Elsa Varga", "Elsa Varga"),
        ("", ""),
    ],
)
def test_extract_answer_ends_where_the_layout_ends_it(written: str, answer: str) -> None:
    assert load_layout("qa-plain-v1").extract_answer(written) == answer
    for by_eos in ("rag-plain-v1", "rag-chatml-v1"):
        assert load_layout(by_eos).extract_answer(written) == written
