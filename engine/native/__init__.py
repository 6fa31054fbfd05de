"""The C++ kernels: built on first start, cached, optional.

`load` gives a `Kernels` or raises `NativeUnavailable` with the reason; without them the torch forward serves.
"""

from engine.native.build import NativeUnavailable
from engine.native.library import Kernels, load

__all__ = ["Kernels", "NativeUnavailable", "load"]
