import pytest

from abstain.core.errors import AbstainError
from abstain.knowledge.documents.pdf import parse_pdf
from tests.knowledge.documents.pdf_writer import Text, write_pdf

FILLER = "words that fill most of the line are here, and more"


def read(*pages: list[Text], **options: object) -> str:
    return parse_pdf(write_pdf(pages, **options))[1]  # type: ignore[arg-type]


def test_pdf_larger_lines_are_headings_by_size() -> None:
    page: list[Text] = [(50, 100, 20, "Gold Card"), (50, 140, 10, "It costs money."), (50, 180, 14, "Fees")]
    page += [(50, 210, 10, "Ten euros a year, to be"), (50, 222, 10, "paid in Janu-"), (50, 234, 10, "ary.")]
    fields, body = parse_pdf(write_pdf([page]))
    assert fields == {"title": "Gold Card"}
    parts = ["<!-- page 1 -->", "# Gold Card", "It costs money.", "## Fees", "Ten euros a year, to be paid in January."]
    assert body == "\n\n".join(parts)


def test_pdf_properties_give_title_and_time() -> None:
    for info, expected in (
        (
            "/Title (Fees and rates) /ModDate (D:20260801093000+02'00')",
            {"title": "Fees and rates", "updated_at": "2026-08-01T09:30:00+02:00"},
        ),
        ("/Title (Microsoft Word - a.docx)", {"title": "Gold"}),
        ("/Title (Fees) /ModDate (D:20261340)", {"title": "Fees"}),
    ):
        assert parse_pdf(write_pdf([[(50, 100, 20, "Gold"), (50, 140, 10, "A card.")]], info=info))[0] == expected


def test_pdf_running_heads_and_page_numbers_are_dropped() -> None:
    def page(number: int) -> list[Text]:
        texts = ((50, 30, f"Handbook, edition {number}"), (50, 300, f"Text {number}."), (300, 780, f"Page {number}"))
        return [(left, top, 10, text) for left, top, text in texts]

    assert read(*map(page, (1, 2, 3))) == "\n\n".join(f"<!-- page {n} -->\n\nText {n}." for n in (1, 2, 3))


def test_pdf_sentence_goes_on_over_the_page() -> None:
    first: list[Text] = [(50, 100, 10, "First."), (50, 300, 10, "The fee is")]
    body = read(first, [(50, 100, 10, "ten euros."), (50, 140, 10, "Last.")])
    assert body == "<!-- page 1 -->\n\nFirst.\n\nThe fee is ten euros.\n\n<!-- page 2 -->\n\nLast."


def test_pdf_two_columns_are_read_one_after_the_other() -> None:
    page: list[Text] = [(50, 100, 20, "A title that spans both of the columns")]
    page += [
        (left, 140 + 12 * row, 10, f"{name}{row} {FILLER}")
        for row in range(6)
        for left, name in ((50, "a"), (320, "b"))
    ]
    body = read(page)
    places = [body.index(f"{name}{row} ") for name in "ab" for row in range(6)]
    assert places == sorted(places) and body.index("spans both") < places[0]


def test_pdf_ruled_table_keeps_its_rows() -> None:
    xs, ys = (50, 150, 250), (100, 120, 140, 160)
    rules = [(x, ys[0], x, ys[-1]) for x in xs] + [(xs[0], y, xs[-1], y) for y in ys]
    texts = [["Service", "Fee"], ["Payment", "free"], ["Cash", "2 euros"]]
    page = [(xs[column] + 5, ys[n] + 14, 10, text) for n, row in enumerate(texts) for column, text in enumerate(row)]
    table = "| Service | Fee |\n| --- | --- |\n| Payment | free |\n| Cash | 2 euros |"
    assert table in read([*page, (50, 200, 10, "After it.")], rules=rules)


def test_pdf_aligned_lines_are_a_table_without_rules() -> None:
    texts = [("Service", "Fee"), ("Payment", "free"), ("Cash", "2 euros")]
    page = [(50 + 150 * x, 100 + 14 * y, 10, text) for y, row in enumerate(texts) for x, text in enumerate(row)]
    assert "| Payment | free |\n| Cash | 2 euros |" in read(page)


def test_pdf_bullets_are_nested_by_where_they_begin() -> None:
    lines = ((50, "- One that is"), (60, "long"), (70, "- Inner"), (50, "- Two"))
    page = [(left, 100 + 12 * n, 10, text) for n, (left, text) in enumerate(lines)]
    assert "- One that is long\n  - Inner\n- Two" in read(page)


ENCRYPTED = f"/Encrypt << /Filter /Standard /V 1 /R 2 /O <{'00' * 32}> /U <{'11' * 32}> /P -4 >> /ID [<00> <00>]"


@pytest.mark.parametrize(
    ("content", "remedy"),
    [
        (write_pdf([[]]), "another converter"),
        (write_pdf([[(50, 100, 10, "x")]], trailer=ENCRYPTED), "without a password"),
        (b"%PDF-1.4 or not", "save it again"),
    ],
    ids=["no text", "encrypted", "damaged"],
)
def test_pdf_that_cannot_be_read_is_one_line(content: bytes, remedy: str) -> None:
    with pytest.raises(AbstainError, match=rf"^.*{remedy}.*\Z"):
        parse_pdf(content)
