"""A client of a gate server in this process, and the keys that it sends."""

from collections.abc import Iterable
from typing import Any

from fastapi.testclient import TestClient

from abstain.data.decision_log import queries
from abstain.serving.api.app import make_app
from abstain.serving.service.gate_service import GateService
from abstain.serving.service.keys import ApiKeys, Role, create_key

BASE = "http://127.0.0.1"
ASKED = {"question": "What is the fee?", "contexts": ["The fee is 5."], "answer": "5"}
QUESTION = {"question": "What is the fee?", "contexts": ["The fee is 5."], "max_new_tokens": 6}


class GateClient(TestClient):
    """A client of an app over `service`, whose parts tests may look at."""

    def __init__(
        self,
        service: GateService,
        keys: ApiKeys | None = None,
        names: Iterable[str] | None = None,
        address: str = BASE,
        **options: Any,
    ) -> None:
        super().__init__(make_app(service, keys or ApiKeys(), names), address, **options)
        self.service = service

    def decide(self, **changes: Any) -> dict[str, Any]:
        """The decision on `ASKED` with these changes."""
        response = self.post("/v1/gate", json={**ASKED, **changes})
        assert response.status_code == 200, response.text
        return response.json()

    def count_decisions(self) -> dict[str, int]:
        """How many decisions of each kind the log holds, but for kinds without any."""
        return {kind: count for kind, count in queries.count_decisions(self.service.log.database).items() if count}

    def read_decision(self, interaction_id: str) -> queries.DecisionDetails:
        details = queries.get_decision(self.service.log.database, interaction_id)
        assert details is not None
        return details

    def read_metrics(self) -> str:
        return self.get("/metrics").text

    def read_version(self) -> dict[str, Any]:
        return self.get("/v1/version").json()


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def make_keys(**roles: Iterable[Role]) -> tuple[ApiKeys, dict[str, dict[str, str]]]:
    """Keys with these names and roles, and the headers that send each."""
    made = {name: create_key(name, given) for name, given in roles.items()}
    return ApiKeys("\n".join(line for _, line in made.values())), {name: bearer(key) for name, (key, _) in made.items()}
