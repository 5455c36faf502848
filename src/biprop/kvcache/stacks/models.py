"""Small causal models of transformers, their weights made from a seed, and their caches.

Two layers, four heads that share two context heads, 64 features, 101 tokens: small in size, and
the stack's own code in every step. Weights come from recipes, so that every machine has the same.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType
from typing import Any, Protocol, cast

import attrs
import torch
from torch import Tensor, nn

from biprop.data.expand import expand
from biprop.data.recipe import Recipe

__all__ = ["CACHE_MAKERS", "SLOTS", "VOCABULARY", "CacheMaker", "StackCache", "Subject", "make"]

VOCABULARY = 101
# Slots of a cache of a fixed size: as many as the longest scenario needs.
SLOTS = 40
_NAMES = {"llama": "Llama", "qwen3": "Qwen3"}
_SIZES: dict[str, int] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
}


class StackCache(Protocol):
    """What scenarios ask of a cache of the stack, beside that the model writes to it."""

    def reset(self) -> None:
        """Forget all tokens."""

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens; their number is given as a negative one."""


# Makes an empty cache from the package, a configuration and the number of slots.
CacheMaker = Callable[[ModuleType, object, int], StackCache]


def _dynamic(package: ModuleType, configuration: object, _slots: int) -> StackCache:
    return cast("StackCache", package.DynamicCache(config=configuration))


def _static(package: ModuleType, configuration: object, slots: int) -> StackCache:
    return cast("StackCache", package.StaticCache(config=configuration, max_cache_len=slots))


CACHE_MAKERS: Mapping[str, CacheMaker] = MappingProxyType({"dynamic": _dynamic, "static": _static})


@attrs.frozen(kw_only=True, eq=False)
class Subject:
    """One model with one kind of cache.

    Attributes:
        package: transformers.
        model: A causal model in evaluation mode.
        device: Where it lies.
        make_cache: Makes an empty cache.
        is_static: Whether caches have a fixed number of slots.
        seed: Of weights and token ids.
    """

    package: ModuleType
    model: nn.Module
    device: torch.device
    make_cache: CacheMaker
    is_static: bool
    seed: int

    def cache(self, slots: int = SLOTS) -> StackCache:
        """Return an empty cache."""
        return self.make_cache(self.package, cast("Any", self.model).config, slots)

    def logits(
        self,
        ids: Tensor,
        *,
        cache: StackCache | None = None,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Run the model.

        Args:
            ids: int64 `[B, S]`.
            cache: None: all attention is within the call.
            mask: int64 `[B, cached + S]`, 1 where a token is real.
            positions: int64 `[B, S]`.

        Returns:
            `[B, S, VOCABULARY]` of the model's dtype.
        """
        result = self.model(
            input_ids=ids,
            cache=cache,
            use_cache=cache is not None,
            attention_mask=mask,
            position_ids=positions,
        )
        return cast("Tensor", result.logits)


def make(
    package: ModuleType,
    name: str,
    *,
    dtype: torch.dtype,
    attention: str,
    seed: int,
    device: torch.device,
) -> nn.Module:
    """Make a causal model in evaluation mode.

    Args:
        package: transformers.
        name: `llama` or `qwen3`.
        dtype: Of its weights; each is the float32 one, rounded.
        attention: Name of the stack's implementation.
        seed: Of the weights.
        device: Where it lies.
    """
    configuration = getattr(package, f"{_NAMES[name]}Config")(
        **_SIZES,
        vocab_size=VOCABULARY,
        pad_token_id=0,
        bos_token_id=None,
        # Without an end token every generation has the length asked for.
        eos_token_id=None,
        tie_word_embeddings=False,
        attn_implementation=attention,
    )
    # The package draws weights from torch's own generator, and they are written over.
    with torch.random.fork_rng(devices=[]):
        model = cast("nn.Module", getattr(package, f"{_NAMES[name]}ForCausalLM")(configuration))
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            parameter.copy_(_weights(parameter_name, tuple(parameter.shape), seed))
    return model.to(device=device, dtype=dtype).eval()


def _weights(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """Return float32 weights: products keep their deviation, and norms scale by about 1."""
    drawn = expand(
        Recipe(kind="normal"),
        seed=seed,
        name=name,
        tokens=None,
        dims=("N", "K")[-len(shape) :],
        sizes=shape,
        dtype=torch.float32,
    )
    if len(shape) == 1:
        return 1 + drawn / 8
    # An embedding is read, not contracted.
    return drawn if "embed" in name else drawn * float(shape[-1]) ** -0.5
