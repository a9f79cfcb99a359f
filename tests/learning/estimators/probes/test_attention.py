import torch

from abstain.learning.estimators.probes.attention import AttentionProbe
from abstain.learning.estimators.training_rows import pad
from tests.learning.estimators.builders import build_probe, ragged


def make_probe() -> AttentionProbe:
    made = build_probe("attention")
    assert isinstance(made, AttentionProbe)
    return made


def test_attention_probe_matches_definition() -> None:
    """By its definition, row by row and head by head: pool first, classify then."""
    module, rows = make_probe(), ragged(1, 4, 9)
    heads = module.hyperparameters["heads"]
    queries, wrong, right = module.queries_and_values.weight.detach().split(heads)
    _, *biases = module.queries_and_values.bias.detach().split(heads)
    for row in rows:
        standard = (row - module.mean) / module.scale
        logits = torch.zeros(2)
        for head in range(heads):
            attention = (standard @ queries[head]).softmax(0)
            assert torch.allclose(attention.sum(), torch.ones(()))
            pooled = attention @ standard
            logits += torch.stack([weight[head] @ pooled for weight in (wrong, right)])
            logits += torch.stack([bias[head] for bias in biases])
        with torch.inference_mode():
            torch.testing.assert_close(module(*pad([row]))[0], logits, atol=1e-4, rtol=1e-4)
