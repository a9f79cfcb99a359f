"""`python -m tests.import_probe ENTRY...`: which heavy libraries each entry point imports, as JSON.

An entry is a module, or `module:function argument ...` to call. Each is imported in a forked process of its own, where a
heavy library is a stand-in that costs nothing: what is found is what would be imported, and not how long it would take.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys
from abc import ABCMeta
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

HEAVY = frozenset(
    [
        "dvc",
        "faiss",
        "great_expectations",
        "matplotlib",
        "nltk",
        "onnx",
        "onnxruntime",
        "pandas",
        "prefect",
        "presidio_analyzer",
        "rouge_score",
        "scipy",
        "sentence_transformers",
        "sklearn",
        "torch",
        "torchmetrics",
        "transformers",
        "venn_abers",
    ]
)
LIGHT = ("numpy", "pyarrow", "pydantic", "pydantic_settings", "typer", "rich.table", "yaml", "jinja2")
"""Imported once, before the forks: what they cost is not asked."""


class _StandIn(ABCMeta):
    """A class that has whatever it is asked for: as a base class, a decorator, an annotation."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(name)

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        return _stand_in(cls.__name__)

    def __getitem__(cls, key: Any) -> Any:
        return cls

    def __or__(cls, other: Any) -> Any:
        return cls

    def __ror__(cls, other: Any) -> Any:
        return cls


def _stand_in(name: str) -> Any:
    return _StandIn(name, (), {"__class_getitem__": classmethod(lambda cls, key: cls)})


class _Module(ModuleType):
    __path__: Sequence[str] = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(name)


class _Finder(MetaPathFinder, Loader):
    """Gives a stand-in for every module of a heavy library."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in HEAVY else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def imported_by(entry: str) -> list[str]:
    """The heavy libraries that `entry` imports in this process."""
    target, *arguments = entry.split()
    name, _, function = target.partition(":")
    module = importlib.import_module(name)
    if function:
        sys.argv = [name, *arguments]
        with contextlib.suppress(SystemExit):
            getattr(module, function)()
    return sorted(HEAVY & {name.partition(".")[0] for name in sys.modules})


def count_tokens() -> None:
    """What cutting a page into chunks does."""
    from abstain.knowledge.documents.tokens import make_token_counter

    assert make_token_counter()("fee") > 0


def apply_calibrations() -> None:
    """What serving does with a calibration."""
    import numpy as np

    from abstain.learning.metrics.calibration import calibrator_from_dict

    steps = {"p0_knots": [0.5], "p0_values": [0.1, 0.6], "p1_knots": [0.5], "p1_values": [0.4, 0.9]}
    for stored in (
        {"method": "temperature", "scale": 2.0},
        {"method": "isotonic", "knots": [0.1, 0.9], "values": [0.2, 0.8]},
        {"method": "venn_abers", **steps},
    ):
        assert 0 < calibrator_from_dict(stored).apply(np.array([0.7]))[0] < 1


def _in_a_fork(entry: str) -> list[str]:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        with contextlib.redirect_stdout(io.StringIO()):
            answer = json.dumps(imported_by(entry))
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    if status or not answer:
        raise SystemExit(f"{entry}: cannot be imported")
    return list(json.loads(answer))


if __name__ == "__main__":
    sys.meta_path.insert(0, _Finder())
    for light in LIGHT:
        importlib.import_module(light)
    assert not HEAVY & {name.partition(".")[0] for name in sys.modules}
    print(json.dumps({entry: _in_a_fork(entry) for entry in sys.argv[1:]}))
