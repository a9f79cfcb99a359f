"""The Prefect server of a run: the one that `make up` started, else a temporary one that ends with the run.

python -m abstain_tasks.server up          start server, UI, worker, deployments, reports and gate (`make up`)
python -m abstain_tasks.server down        stop them, and what they are running (`make down`)
python -m abstain_tasks.server worker      in the foreground: a worker that computes features (`make worker`)
python -m abstain_tasks.server automations bring the automations in step, at `make up` or PREFECT_API_URL
python -m abstain_tasks.server key         print the key that the servers of this home ask for

Both servers keep the same SQLite database, `$ABSTAIN_HOME/prefect/prefect.db`, so every past run is listed in the UI.
"""

from abstain_tasks.server.addresses import UI, find_running_server, prepare_environment, with_login
from abstain_tasks.server.temporary import server_for_run

__all__ = ["UI", "find_running_server", "prepare_environment", "server_for_run", "with_login"]
