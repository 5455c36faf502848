"""Kernels of a user, as text files: correct, broken, and worse; no test is here."""

__all__ = ["BAD", "MINE"]

# Row-wise functions as people write them.
MINE = """
import torch
import biprop


def centre(x, weight):
    x = x.contiguous()
    return (x - x.float().mean(-1, keepdim=True).to(x.dtype)) * weight


def centre_wrongly(x, weight):
    mean = x.float().mean(-1, keepdim=True)
    if x.shape[0] > 1:
        mean = mean.mean(0, keepdim=True).expand_as(mean)
    return (x - mean.to(x.dtype)) * weight


@biprop.operator("x[T,H], weight[H] -> y[T,H]", call={"eps": 1e-6}, dims="H=1..64")
def norm(x, weight, *, eps):
    square = x.contiguous().float().square().mean(-1, keepdim=True)
    return (x.float() * (square + eps).rsqrt()).to(x.dtype) * weight


def sometimes(x):
    return x + (torch.rand(()) < 0.5)


def picky(x):
    if x.shape[1] > 3:
        raise ValueError("\\x1b[31mat most 3 columns")
    return x * 2


def loud(x):
    print("\\x1b[31m" + "talk " * 1000)
    return x * 2
"""

# What a worker does not survive where the launch holds more than one token.
BAD = """
import ctypes
import os
import time


def segfault(x):
    if x.shape[0] > 1:
        ctypes.string_at(0)
    return x * 2


def leave(x):
    if x.shape[0] > 1:
        os._exit(7)
    return x * 2


def hang(x):
    while x.shape[0] > 1:
        time.sleep(0.1)
    return x * 2


def slow(x):
    time.sleep(0.02)
    if x.shape[0] > 1:
        with open("calls.txt", "a") as calls:
            calls.write(".")
    return x * (2 + x.shape[0])
"""
