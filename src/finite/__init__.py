"""Finite: train networks with several losses at once, without losing a run to NaN.

Importing the package prepares the process (see `finite.runtime`) before MindSpore can be imported anywhere.
"""

from finite import runtime

__version__ = "0.1.0"

runtime.prepare()
