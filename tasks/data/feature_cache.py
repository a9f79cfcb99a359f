"""The feature-cache entries that the current data, parameters and production can still use."""

from __future__ import annotations

from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.core.contracts import Interaction
from abstain.data.store.dataset import DataStore
from abstain.llm.features.extraction import FeatureSource
from abstain.llm.signals.feature_plan import get_served_site, plan_features, plan_nll_features
from abstain.llm.signals.registry import build_scorers
from abstain.release.registry import parse_registry
from abstain.serving.predictor import Predictor
from abstain_tasks.release.bundles import fetch_bundle
from abstain_tasks.runs.workspace import open_workspace
from abstain_tasks.training.retrain_cost import read_labelled


def collect_needed_keys() -> dict[str, set[str]]:
    """Collect the keys that a retrain under params.yaml or the version in production needs.

    Returns:
        Namespace digest -> keys.

    Raises:
        AbstainError: The workspace or a model cannot be read.
    """
    settings = load_settings()
    with open_workspace() as workspace:
        interactions = list(DataStore(workspace.path / paths.DATA).iter_rows(Interaction))
        params, labelled, _ = read_labelled(workspace)
        nll_plan, rows = plan_nll_features(params, settings, labelled)
        work = plan_features(params, build_scorers(params, settings).scorers, labelled) + nll_plan.get_known_work(rows)
        work.append(
            (interactions, (get_served_site(params).make_feature_request(params.llm),))
        )  # those without a label yet, too
        sources = [
            (FeatureSource(params.llm, settings, request), answers)
            for answers, requests in work
            for request in requests
        ]
        promoted = parse_registry((workspace.path / paths.REGISTRY).read_text()).production
        if promoted is not None:
            bundle = fetch_bundle(workspace.path, promoted)
            reader = Predictor.open(bundle / paths.RELEASED_ONNX.name, settings).reader
            sources += [(source, interactions) for source in reader.sources]
    needed = nll_plan.perturber.collect_keys(rows)
    for source, answers in sources:
        needed.setdefault(source.get_namespace().digest, set()).update(filter(None, source.build_keys(answers)))
    return needed
