"""Perturbed contexts (Zhang et al., "An Automatic Method to Estimate Correctness of RAG", section 3): where, when, how.

Some tokens of a text are replaced by what a perturbation model would have written there instead. The ask is `Perturb`
(llm/asks.py); what comes back is one row a replacement (`text.Step`), so that a perturbed text can be shown as a diff.

Three decisions:

* One loop (loop.py) for `entropy` and `random`, `single_shot` and `iterative`, over one protocol, `Reader`, which says
  how likely tokens are and what else could stand there. A causal model, a masked one and a sequence-to-sequence one are
  three readers; a fourth kind of model would be a fourth.
* What is replaced is a place in the text, not in a list of tokens: all characters around it stay as they are, whether
  or not the tokenizer could write them back, and the base model may read the result with another tokenizer.
* A text is perturbed by itself, under a seed that is made of the ask's and the text: whatever stands beside it.
"""
