import pytest

from abstain.config.params import Params
from abstain.core.errors import AbstainError
from abstain.llm.features.shard_job import JobStats
from abstain.llm.signals.feature_plan import list_candidate_sites
from abstain.stages import choose_site
from abstain.stages.features import __main__ as features
from abstain.stages.shared import artifacts
from tests.stages.conftest import use_home, write_labels

pytestmark = pytest.mark.slow


def with_layer(params: Params, layer: int | str) -> Params:
    return params.model_copy(update={"llm": params.llm.model_copy(update={"layer": layer})})


@pytest.mark.parametrize(
    ("depth", "layers"), [(30, [10, 15, 20, 25]), (4, [1, 2, 3]), (1, [1]), (32, [11, 16, 21, 27])]
)
def test_list_candidate_sites_spans_middle_layers(depth: int, layers: list[int]) -> None:
    assert [(at.layer, at.site) for at in list_candidate_sites(depth)] == [
        (layer, site) for layer in layers for site in ("residual", "mlp")
    ]


def test_features_layer_auto_raises(bank: Params) -> None:
    with pytest.raises(AbstainError, match=r"^llm.layer: auto"):
        features.stage(with_layer(bank, "auto"))


def test_choose_site_reads_no_answer_twice(
    bank: Params, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the stage reads the others only: together no more tokens than the stage alone reads."""
    costs: list[JobStats] = []
    for module in (features, choose_site):
        compute = module.compute_missing
        monkeypatch.setattr(
            module, "compute_missing", lambda *args, _compute=compute: costs.append(_compute(*args)) or costs[-1]
        )
    use_home(monkeypatch, tmp_path_factory.mktemp("one-pass"))
    features.stage(with_layer(bank, 3))
    use_home(monkeypatch, tmp_path_factory.mktemp("choice-first"))
    choice = choose_site.choose_site(with_layer(bank, "auto"))
    features.stage(with_layer(bank, 3))
    alone, chosen, rest = (cost.forward_tokens for cost in costs)
    assert 0 < chosen < alone and 0 < rest < alone
    assert chosen + rest <= alone * 1.02  # a prefix that a training answer shares with another is read in both
    train = artifacts.read_dataset_frame().query("split == 'train'")
    assert choice.rows <= len(train) and choice.reviewed <= (train["source"] == "review").sum()
    assert (choice.layer, choice.site) in [(site.layer, site.site) for site in choice.sites]
    assert all(site.auroc_low <= site.auroc <= site.auroc_high for site in choice.sites)


def test_choose_site_uses_reviewed_training_answers(bank: Params) -> None:
    before = choose_site.choose_site(with_layer(bank, "auto"))
    write_labels("split != 'train'", correct=0)
    assert choose_site.choose_site(with_layer(bank, "auto")) == before
    write_labels("split == 'train'", source="thumb")
    with pytest.raises(AbstainError, match="set llm.layer"):
        choose_site.choose_site(with_layer(bank, "auto"))
