"""How near two floats must be that the same arithmetic gave, in another order or on another machine.

Exact equality of floats is asserted where bits are promised, and nowhere else:
* what was copied, stored and read, selected or reordered: no arithmetic stands between the two;
* numbers that floats hold exactly and that sums of them hold exactly: integers, halves, quarters;
* a file, a hash, and the same call on the same values in the same process: the pipeline's stages promise equal bytes for
  equal inputs on one machine, whatever else runs there.
Where rows stand in another batch, among others or in another order, or where other code computed the same figure, a
library may sum in another order, and does on other processors: such floats are compared with a tolerance.
"""

from typing import Any

import numpy as np
import torch

EPS = 256
"""Rounding errors that may add up: sums of some thousand terms stay below it, a wrong term does not."""


def tolerance(dtype: Any) -> float:
    """`EPS` machine epsilons of a float dtype of numpy or torch: 3e-5 of float32, 6e-14 of float64."""
    info = torch.finfo(dtype) if isinstance(dtype, torch.dtype) else np.finfo(dtype)
    return EPS * float(info.eps)


def assert_near(found: Any, expected: Any, computed_in: Any = None) -> None:
    """Arrays, tensors or lists of one shape whose entries differ by no more than `tolerance`.

    Of the dtype in which they were computed; by default the coarser one of the two. Relative to the entry, and for
    those near zero to the largest expected one (at least 1). NaN equals NaN.
    """
    one, other = np.asarray(found), np.asarray(expected)
    assert one.shape == other.shape
    dtypes = [of.dtype for of in (one, other) if of.dtype.kind == "f"] if computed_in is None else [computed_in]
    within = max(tolerance(dtype) for dtype in dtypes)
    scale = max(1.0, float(np.abs(other[np.isfinite(other)]).max(initial=0.0)))
    np.testing.assert_allclose(one, other, rtol=within, atol=within * scale)
