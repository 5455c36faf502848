"""The lanes that need a GPU, and the evidence that they leave: what `ci/gpu` and `ci/figures` run.

No part of the package: nothing here is shipped, and nothing below imports it.
"""
