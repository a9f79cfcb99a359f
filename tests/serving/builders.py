"""A release whose probe is known, and requests to it."""

import hashlib
import json
from pathlib import Path

from abstain.config.settings import Settings
from abstain.core.bundle_format import BUNDLE_FORMAT, FORMAT_KEY, write_digest
from abstain.core.contracts import Interaction
from abstain.learning.estimators.fusion import Fusion
from abstain.llm.engine.loading import find_model
from abstain.llm.engine.prompts import load_layout
from abstain.serving.request_files import make_interaction_from_texts
from tests.learning.estimators.builders import write_mean_probe
from tests.learning.thresholds.builders import make_guarantee, make_missing_guarantee
from tests.llm.builders import WIDTH

LAYOUT = "rag-plain-v1"
GUARANTEE = make_guarantee().model_dump_json()
MISSING_GUARANTEE = make_missing_guarantee().model_dump_json()
FUSION = Fusion(("min_log_prob", "probe"), (-3.0, 0.1), (2.0, 0.5), (0.8, 0.6), (0, -0.5), intercept=0.2, strength=1.0)


def metadata(model: Path, settings: Settings) -> dict[str, str]:
    return {
        FORMAT_KEY: BUNDLE_FORMAT,
        "version": "v1.2.0",
        "contract": "1",
        "model": str(model),
        "model_revision": find_model(str(model), settings).revision,
        "layout": LAYOUT,
        "layout_digest": load_layout(LAYOUT).digest,
        "layer": "2",
        "site": "residual",
        "too_long": "refuse",
        "includes_eos": "true",
        "scorer": json.dumps({"name": "probe", "sha256": {}, "models": {}, "forward_tokens": None}),
        "threshold": "0.5",
        "guarantee": MISSING_GUARANTEE,
        "calibration": json.dumps({"method": "none"}),
        "answers": json.dumps({"reasoning": ["think", "details", "channel"], "refusals": ["I don't know"]}),
    }


def release(folder: Path, base: Path, settings: Settings, **changes: str | None) -> Path:
    """Finish the bundle `folder`, which may have parts already; returns its probe's file."""
    folder.mkdir(parents=True, exist_ok=True)
    own = {**metadata(base, settings), **changes}
    file = write_mean_probe(folder / "probe.onnx", WIDTH, {k: v for k, v in own.items() if v is not None})
    write_digest(folder)
    return file


def write_scorer(bundle: Path, name: str, *, forward_tokens: float = 1.0, **files: bytes) -> str:
    """Write the parts of a scorer into `bundle`; returns its description, `scorer` among the metadata."""
    (bundle / "parts").mkdir(parents=True, exist_ok=True)
    for part, content in files.items():
        (bundle / "parts" / f"{part}.onnx").write_bytes(content)
    sha256 = {part: hashlib.sha256(content).hexdigest() for part, content in files.items()}
    return json.dumps({"name": name, "models": {}, "forward_tokens": forward_tokens, "sha256": sha256})


def requests(count: int = 6) -> list[Interaction]:
    return [
        make_interaction_from_texts(f"Question {n}?", "yes " * (n + 1), ["c" * n] if n else []).model_copy(
            update={"interaction_id": f"i-{n}"}
        )
        for n in range(count)
    ]
