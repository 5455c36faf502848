"""A small model, so that programs can generate: one layer, made of registered operators.

    ids -> embedding -> q, k, v by det_gemm -> rope -> attention, cached or not -> lm_head -> logits
                                                                          greedy: the largest logit

Decoding takes one token at a time through the cache, teacher forcing all of them at once through a
full prefill; ids, positions and weights are the same, so the log probabilities of the ids must be.

Shapes: L tokens, HQ, HK heads, D features, V ids; H = HQ * D, features of the embedding.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from biprop.bits import bit_pattern
from biprop.data.expand import expand, expand_tokens
from biprop.data.recipe import Recipe
from biprop.kvcache.records import Program
from biprop.kvcache.values import TORCH_DTYPES, Rows, tokens_of
from biprop.operators import Registry

__all__ = ["SmallModel"]


class SmallModel:
    """Makes tokens of ids, and log probabilities of what attention makes of them."""

    def __init__(
        self, program: Program, registry: Registry, *, backend: str, device: torch.device
    ) -> None:
        """Draw the weights.

        Args:
            program: It has a vocabulary.
            registry: Its operators.
            backend: Of these.
            device: Where all lies.

        Raises:
            TargetError: An operator is not registered for the backend.
        """
        assert program.vocabulary is not None, "the caller looked"
        self._program = program
        self._device = device
        self._vocabulary = program.vocabulary
        self._operators = {
            name: registry.find(target=name, backend=backend)
            for name in ("embedding", "det_gemm", "rope", "lm_head", "logp")
        }
        shape = program.shape
        features = shape.query_heads * shape.width
        self._weights = {
            "embedding": self._weight("embedding", self._vocabulary, features, gain=0),
            "wq": self._weight("wq", features, features),
            "wk": self._weight("wk", shape.heads * shape.width, features),
            "wv": self._weight("wv", shape.heads * shape.width, features),
            "lm_head": self._weight("lm_head", self._vocabulary, features),
        }

    def rows(self, source: int, start: int, stop: int) -> Rows:
        """Return the tokens of keys (`source`, `start`) to (`source`, `stop - 1`)."""
        tokens = tokens_of(self._program.shape, source, start, stop, device=self._device)
        ids = expand_tokens(
            seed=self._program.seed, name="ids", tokens=tokens, vocabulary=self._vocabulary
        )
        return self.rows_of(ids, start=start)

    def rows_of(self, ids: Tensor, *, start: int) -> Rows:
        """Return the tokens of int64 ids `[L]`, at positions from `start` on."""
        shape = self._program.shape
        hidden = self._run("embedding", ids, self._weights["embedding"])
        q, k, v = (
            self._run("det_gemm", hidden, self._weights[name]).view(len(ids), -1, shape.width)
            for name in ("wq", "wk", "wv")
        )
        if shape.width % 2 == 0:
            position = torch.arange(start, start + len(ids), device=self._device)
            q, k = (self._run("rope", side, position) for side in (q, k))
        return Rows(q=q, k=k, v=v, ids=ids)

    def logits(self, out: Tensor) -> Tensor:
        """Return `[L, V]` of what attention gave, `[L, HQ, D]`."""
        return self._run("lm_head", out.flatten(1), self._weights["lm_head"])

    def logp(self, logits: Tensor, ids: Tensor) -> Tensor:
        """Return float32 `[L]`, the log probabilities of ids."""
        found = self._operators["logp"]
        returned = found.function(logits, ids, **found.call)
        assert isinstance(returned, tuple), "it returns lse too"
        logp = returned[0]
        assert isinstance(logp, Tensor), "as its signature says"
        return logp

    def greedy(self, logits: Tensor) -> Tensor:
        """Return int64 `[L]`, the id of the largest logit; the first of equal ones."""
        bits = bit_pattern(logits.float()).long()
        # In the order of the floats, so that no comparison of floats breaks a tie as it likes.
        ordered = torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
        place = torch.arange(self._vocabulary, device=logits.device)
        return (ordered * self._vocabulary - place).argmax(dim=1)

    def _run(self, name: str, *arguments: Tensor) -> Tensor:
        kernel = self._operators[name]
        returned = kernel.function(*arguments, **kernel.call)
        assert isinstance(returned, Tensor), "as its signature says"
        return returned

    def _weight(self, name: str, *sizes: int, gain: int | None = None) -> Tensor:
        recipe = self._program.data.get(name)
        if recipe is None:
            # As a model scales its weights.
            exponent = -round(math.log2(sizes[-1]) / 2) if gain is None else gain
            recipe = Recipe(kind="normal", exponent=exponent)
        return expand(
            recipe,
            seed=self._program.seed,
            name=name,
            tokens=None,
            dims=_dims(name),
            sizes=sizes,
            dtype=TORCH_DTYPES[self._program.shape.dtype],
            device=self._device,
        )


def _dims(name: str) -> Sequence[str]:
    return ("V", "H") if name in {"embedding", "lm_head"} else ("N", "H")
