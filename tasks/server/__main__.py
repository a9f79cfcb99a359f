"""Entry point of `make up`, `make down`, `make worker`, the reports and the temporary server."""

from __future__ import annotations

import signal
import sys

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from tasks.server import background, reports
from tasks.server.addresses import prepare_environment
from tasks.server.temporary import serve_child


def main() -> None:
    # Server and worker are stopped by SIGINT, which a shell's background job is started to ignore, and so its children.
    """Run the command in `sys.argv`."""
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
                raise AbstainError(Code.USAGE, "run `python -m tasks.server up`, `down`, `worker` or `automations`")
    except AbstainError as error:
        print(f"error {error.message_with_code}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
