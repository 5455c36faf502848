"""KV caches under test: their protocol, programs of operations, and what judges a program.

A program is data (`biprop.kvcache.records`): operations on named sequences, recipes instead of
tensors. One interpreter (`biprop.kvcache.interpreter`) runs it against a cache and checks every
promise bit against bit; generating, replaying and minimising share it. Hypothesis is not known
here: the machine that writes programs lives in `biprop.strategies`.
"""
