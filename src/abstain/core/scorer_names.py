"""Names of scorers that more than one package uses."""

PROBE = "probe"
"""The exported probe; probes of other architectures have the architecture's name."""
REGRESSORS = "regressors"
"""All correctness regressors, which share one feature request; each has the name of its kind and target."""
WRITER = "writer"
YES_SCORES = ("yes_score", "yes_score_tokens", "yes_score_fused")
VERBALIZED = "verbalized"
FAMILIARITY = "familiarity"
OVERLAP, TEXT_SIMILARITY, CROSS_ENCODER = "overlap", "text_similarity", "cross_encoder"
ENTAILMENT, EXTRACTIVE_QA = WITH_MODEL = "entailment", "extractive_qa"
"""Scorers that run a model beside the base model: `scorers.NAME_model`."""
FUSION = "fusion"
"""The fusion of all scorers."""
FREE, ONE_PASS, TWO_PASSES = "fusion_free", "fusion_one_pass", "fusion_two_passes"
"""Cheaper fusions.

The first adds to the probe what costs no forward pass, the second what uses the features of the pass with the contexts,
the third also those of the pass without them.
"""
FUSIONS = (FREE, ONE_PASS, TWO_PASSES, FUSION)
LENGTH_ONLY, BASE_RATE = "length_only", "base_rate"
NOT_SERVED = {
    LENGTH_ONLY: "it is a baseline",
    BASE_RATE: "it is a baseline",
    CROSS_ENCODER: "it is for comparison, and its fine-tuned weights are not in a bundle",
}
"""Scorers that decide about no answer, alone or in a fusion, and why."""
