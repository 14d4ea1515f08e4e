"""The few hot loops: plain functions on tensors, in C where that was compiled, and in torch everywhere.

Each has a reference in torch beside it, named ``..._reference``, that gives the same bits whatever the
machine, the number of threads and the instruction set. What runs is said by :mod:`.native`.
"""
