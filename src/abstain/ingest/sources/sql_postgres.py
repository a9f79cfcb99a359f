"""Values of PostgreSQL that Python has none for: `infinity`, years before 1 and after 9999, 24 o'clock.

psycopg raises for them while it fetches, and with the value the whole page is lost. Here such a value is the text
that the server wrote: the contracts refuse its row, and the server still takes it back as a watermark or a key.
"""

from __future__ import annotations

from typing import Any

_TIMES = ("date", "time", "timetz", "timestamp", "timestamptz", "interval")


def keep_odd_times(link: Any, _record: Any) -> None:
    """Prepare a new connection of psycopg."""
    from psycopg.pq import Format

    for name in _TIMES:
        loader = link.adapters.get_loader(link.adapters.types[name].oid, Format.TEXT)
        link.adapters.register_loader(name, _or_text(loader))


def _or_text(loader: Any) -> Any:
    """`loader`, which leaves as text what it cannot read."""
    from psycopg import DataError
    from psycopg.adapt import Loader

    class OrText(Loader):
        # Not a subclass of `loader`: where that is compiled, psycopg would call it past its `load`.
        def __init__(self, oid: int, connection: Any = None) -> None:
            super().__init__(oid, connection)
            self._load = loader(oid, connection).load

        def load(self, data: Any) -> Any:
            try:
                return self._load(data)
            except DataError:
                return bytes(data).decode()

    return OrText
