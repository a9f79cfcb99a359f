"""Text of callers on the gate's pages: it stays text."""

import html
import re
from urllib.parse import quote

import pytest
from bs4 import BeautifulSoup
from fastapi.testclient import TestClient

from abstain.serving.service.gate_service import GateService
from tests.attacks.conftest import Count
from tests.serving.status_page.builders import queue_answers
from tests.serving.status_page.test_page import page, send

__all__ = ["page"]

pytestmark = pytest.mark.heavy  # servers of a tiny model: not pure functions

HOSTILE = [
    *("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "'-alert(1)-'", "javascript:alert(1)"),
    *("{{7*7}}${7*7}", "</textarea><svg/onload=alert(1)>", "</title><script>x</script>", "&lt;b&gt;"),
    *("\u202eevil\u2066", "]]><!--", "%0d%0aSet-Cookie:a=b"),
]
LINKS = ("href", "src", "action", "formaction")
OTHER_SITES = ("https://evil.example", "null", "http://localhost:8700", "http://127.0.0.1:9999")


def list_runnable(page: str) -> list[str]:
    """What a page would run or load."""
    tags = BeautifulSoup(page, "html.parser").find_all(True)
    attributes = [item for tag in tags for item in tag.attrs.items()]
    names = [tag.name for tag in tags if tag.name in ("script", "img", "iframe", "object", "embed")]
    names += [name for name, _ in attributes if name.startswith("on")]
    return names + [name for name, value in attributes if name in LINKS and "javascript:" in str(value).lower()]


def test_pages_run_no_text_of_callers(page: TestClient, service: GateService, assert_repelled: Count) -> None:
    pages = []
    for number, text in enumerate(HOSTILE):
        key = f"x{number}{text}"
        asked = {"question": f"{text} q?", "answer": text, "contexts": [{"chunk_id": text, "text": text}]}
        asked |= dict.fromkeys(("product", "group", "user", "model"), text) | {"interaction_id": key}
        assert page.post("/v1/gate", json=asked).status_code == 200
        review = {"feedback_id": key, "interaction_id": key, "reviewer": text, "ideal_answer": text}
        review |= dict.fromkeys(("complete", "correct", "truthful"), True)
        assert page.post("/v1/feedback", json=review).status_code == 200
        pages += [page.get(f"/review?id={quote(key, safe='')}"), page.get(f"/review?id={quote(text, safe='')}")]
        pages.append(send(page, "/try", question=f"{text}?", contexts=text, answer=text))
        assert text in html.unescape(pages[-1].text), "it is shown as text"
    pages.append(page.get("/"))
    held = [reply for reply in pages if not list_runnable(reply.text) and ">49$" not in reply.text]
    queue_answers(service, *HOSTILE)
    queued = {text: page.get(f"/review?id={quote(text, safe='')}").text for text in HOSTILE}
    assert not any(list_runnable(reply) or text not in html.unescape(reply) for text, reply in queued.items())
    assert all("default-src 'none'" in reply.headers["content-security-policy"] for reply in pages)
    assert_repelled("scripts in texts of callers", len(pages), len(held))


def test_server_rejects_forms_of_other_sites(page: TestClient, assert_repelled: Count) -> None:
    token = re.search(r'name="token" value="(\w+)"', page.get("/").text)
    form = {"interaction_id": "i", "complete": "yes", "correct": "yes", "truthful": "yes"}
    thumb = {"feedback_id": "f", "interaction_id": "i", "thumb": "up"}
    replies = [page.post("/review", data=form)]
    for origin in OTHER_SITES:
        headers = {"Origin": origin}
        replies.append(page.post("/review", data={**form, "token": token[1]}, headers=headers))
        replies.append(page.post("/v1/feedback", json=thumb, headers={**headers, "Content-Type": "text/plain"}))
        replies.append(page.get("/v1/version", headers=headers))
        replies.append(page.options("/v1/gate", headers={**headers, "Access-Control-Request-Method": "POST"}))
    replies += [page.get("/", headers={"Host": host}) for host in ("evil.example", "127.0.0.1.evil.example:8700")]
    rejected = [reply for reply in replies if reply.status_code in (400, 403)]
    held = [reply for reply in rejected if "access-control-allow-origin" not in reply.headers]
    assert_repelled("forms and requests of other sites", len(replies), len(held))
