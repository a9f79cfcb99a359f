"""Abstain: should this RAG answer be shown, or withheld?

`Gate` decides in process, `HttpGate` asks a server; both give a `Decision`. A method that is compared is a `Scorer`, a
formula over what the base model reads a `Signal`. Each is imported where it is first used: `import abstain` is light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from abstain.llm.signals.base import Scorer, Signal
    from abstain.serving.decision import Decision
    from abstain.serving.gate import Gate
    from abstain.serving.gateways.client import HttpGate

__version__ = "0.1.0"
__all__ = ["Decision", "Gate", "HttpGate", "Scorer", "Signal"]
_MODULES = {
    "Decision": "abstain.serving.decision",
    "Gate": "abstain.serving.gate",
    "HttpGate": "abstain.serving.gateways.client",
    "Scorer": "abstain.llm.signals.base",
    "Signal": "abstain.llm.signals.base",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
