"""DVC stage `train_probe`: all probe architectures, each fitted on the training split only, and the exported one."""

import math
from collections.abc import Mapping

import pandas as pd

from abstain.config.params import Architecture, Params
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically
from abstain.data.store.splits import select_reviewed
from abstain.learning.estimators.cross_validation import FittedProbe, fit_probe
from abstain.learning.estimators.probe_registry import PROBES, save_probe
from abstain.learning.estimators.summaries import ProbeChoice
from abstain.learning.estimators.training_rows import make_training_rows
from abstain.learning.metrics.weighted_metrics import auroc, row_weights
from abstain.stages.shared import artifacts
from abstain.stages.shared.states import load_labelled_states


def stage(params: Params) -> None:
    """Fit the probes and choose the exported one."""
    frame, states = load_labelled_states()
    train = frame[frame["split"] == "train"]
    rows = make_training_rows(train, states.subset)
    fits: dict[Architecture, FittedProbe] = {}
    for number, architecture in enumerate(params.probe.architectures):

        def on_progress(done: int, total: int, n_fitted: int = number) -> None:
            artifacts.report_progress(n_fitted * total + done, len(params.probe.architectures) * total)

        fits[architecture] = fit_probe(architecture, rows, train["group"].to_numpy(), params.probe, on_progress)
    out_of_fold = pd.DataFrame({name: fitted.out_of_fold.astype(float) for name, fitted in fits.items()}, train.index)
    aurocs = {name: _compute_auroc(train, out_of_fold[name]) for name in fits}
    exported = _choose_best(aurocs) if params.probe.export == "best" else params.probe.export
    print(
        f"out-of-fold AUROC: {', '.join(f'{name} {value:.3f}' for name, value in aurocs.items())}; exported: {exported}"
    )
    with artifacts.atomic_folder(paths.PROBES) as folder:
        for name, fitted in fits.items():
            save_probe(fitted.probe, folder / f"{name}.safetensors")
    save_probe(fits[exported].probe, paths.PROBE)
    write_atomically(
        paths.OUT_OF_FOLD, out_of_fold.assign(interaction_id=train["interaction_id"]).to_parquet(index=False)
    )
    history = fits[exported].history
    curve = {"epoch": range(1, len(history.step_values) + 1), "train_loss": history.train_loss}
    artifacts.write_text(
        paths.TRAINING, pd.DataFrame({**curve, "validation_loss": history.held_out_loss}).to_csv(index=False)
    )
    choice = ProbeChoice(
        exported=exported,
        description=PROBES[exported].describe(params.probe),
        requested=params.probe.export,
        out_of_fold=dict(aurocs),
    )
    artifacts.write_json(paths.PROBE_CHOICE, choice.to_dict())


def _choose_best(aurocs: Mapping[Architecture, float]) -> Architecture:
    if len(aurocs) > 1 and any(math.isnan(value) for value in aurocs.values()):
        raise AbstainError(
            Code.TOO_FEW_LABELS,
            "the best probe is chosen by the reviewed training answers, and these are not of both kinds: "
            f"bring reviews, or set probe.export to one of {', '.join(aurocs)}",
        )
    return max(aurocs, key=lambda name: aurocs[name])


def _compute_auroc(train: pd.DataFrame, out_of_fold: pd.Series) -> float:
    """Compute the AUROC on the reviewed training answers: thumbs are used for fitting, but not for selection."""
    reviewed = select_reviewed(train)
    weight = row_weights(reviewed["inclusion_probability"].to_numpy(float))
    return float(auroc(reviewed["correct"].to_numpy(int), out_of_fold[reviewed.index].to_numpy(), weight))


if __name__ == "__main__":
    artifacts.run_stage(stage)
