"""Entry point of `make up`, `make down`, `make worker`, the reports and the temporary server."""

from __future__ import annotations

import signal
import sys

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain_tasks.server import background, reports
from abstain_tasks.server.addresses import prepare_environment
from abstain_tasks.server.temporary import serve_child


def main() -> None:
    """Run the command in `sys.argv`."""
    # Server and worker are stopped by SIGINT, which a shell's background job is started to ignore, and so its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        prepare_environment()
        match sys.argv[1:]:
            case ["up"]:
                background.up()
            case ["down"]:
                background.down()
            case ["worker", *pool]:
                background.worker(*pool)
            case ["automations"]:
                background.automations()
            case ["key"]:
                background.print_key()
            case ["reports"]:
                reports.serve_here()
            case ["child", port]:
                serve_child(int(port))
            case _:
                raise AbstainError(
                    Code.USAGE, "run `python -m abstain_tasks.server up`, `down`, `worker` or `automations`"
                )
    except AbstainError as error:
        print(f"error {error.message_with_code}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
