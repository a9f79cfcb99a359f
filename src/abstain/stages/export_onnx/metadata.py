"""The metadata of a bundle's head, the probe's ONNX file: all that `Predictor.open` reads besides the graphs."""

from __future__ import annotations

import json
from collections.abc import Mapping

from abstain.config.params import Params
from abstain.config.settings import load_settings
from abstain.core.bundle_format import BUNDLE_FORMAT, FORMAT_KEY
from abstain.core.contracts import CONTRACT_VERSION
from abstain.llm.engine.loading import find_model
from abstain.llm.engine.requests import get_chosen_layer
from abstain.llm.engine.tokenization import load_model_layout


def make_metadata(
    params: Params,
    *,
    model_revision: str,
    scorer: Mapping[str, object],
    threshold: float,
    guarantee: Mapping[str, object],
    calibration: Mapping[str, object],
) -> dict[str, str]:
    """Make the metadata of an unreleased bundle.

    Args:
        params: Parameters of the training.
        model_revision: Revision of the base model whose features the scorer was fitted to.
        scorer: Name and cost of the served scorer, the checksums of its files and the models that it runs.
        threshold: Confidence from which on an answer is shown.
        guarantee: The guarantee, or why there is none.
        calibration: The fitted calibrator.

    Returns:
        Texts by key.

    Raises:
        AbstainError: The layer is not chosen yet, or the base model or its layout is not on this machine.
    """
    llm = params.llm
    return {
        FORMAT_KEY: BUNDLE_FORMAT,
        "version": "unreleased",  # promotion stamps the version and the guarantee; the graph stays unchanged
        "contract": str(CONTRACT_VERSION),
        "model": llm.model,
        "model_revision": model_revision,
        "layout": llm.layout,
        "layout_digest": load_model_layout(find_model(llm.model, load_settings()), llm.layout).digest,
        "layer": str(get_chosen_layer(llm)),
        "site": llm.site,
        "too_long": llm.too_long,
        "includes_eos": json.dumps(llm.includes_eos),
        "scorer": json.dumps(scorer, sort_keys=True),
        "answers": json.dumps({"reasoning": params.labels.reasoning, "refusals": params.labels.refusals}),
        "threshold": repr(threshold),
        "guarantee": json.dumps(guarantee, sort_keys=True),
        "calibration": json.dumps(calibration, sort_keys=True),
    }
