"""What a call does: whether it compresses, by which schedule, and in pieces of which size.

A cost model (model.py) predicts from a profile of links and codec (profile.py) which ways of doing a call can be the
fastest; selection.py tries those on the first calls of a kind, and stays with the one that was.
"""

from zipccl.strategy.plan import GATHER, NATIVE, Plan
from zipccl.strategy.profile import Profile
from zipccl.strategy.selection import Strategy

__all__ = ["GATHER", "NATIVE", "Plan", "Profile", "Strategy"]
