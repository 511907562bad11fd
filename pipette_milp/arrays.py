"""Array types used everywhere; shapes, units and index order stand in the docstring of each field."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]
