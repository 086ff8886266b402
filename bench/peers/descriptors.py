# SPDX-License-Identifier: BSD-3-Clause
"""The descriptors of attn.h as ctypes structures. The library compares their sizes."""
import ctypes as c

PADDED, PACKED, PAGED = 0, 1, 2
TOP_LEFT, BOTTOM_RIGHT = 1, 2
I32, I64 = 0, 1


def fields(kind, names):
    return [(name, kind) for name in names.split()]


class Tensor(c.Structure): # attn_input, attn_output
    _fields_ = [("data", c.c_void_p), ("dtype", c.c_int)] + fields(
        c.c_int64, "batch_stride token_stride head_stride")


class Scores(c.Structure): # attn_score_input, attn_score_output
    _fields_ = [("data", c.c_void_p), ("dtype", c.c_int)] + fields(
        c.c_int64, "batch_stride head_stride query_stride key_stride")


class Index(c.Structure):
    _fields_ = [("data", c.c_void_p), ("type", c.c_int)]


class TokenMask(c.Structure):
    _fields_ = [("data", c.c_void_p), ("batch_stride", c.c_int64)]


class Side(c.Structure):
    _fields_ = [("layout", c.c_int), ("seqlen", c.c_int64), ("tokens", c.c_int64),
                ("cu_seqlens", Index), ("seqused", Index)] + fields(
        c.c_int64, "max_seqlen pages page_size") + [
        ("block_table", Index), ("max_pages", c.c_int64)]


class Sized(c.Structure):
    """A structure that starts with its size, and keeps the tensors that it points to."""
    def __init__(self, **values):
        super().__init__(c.sizeof(type(self)))
        self.alive = values
        for name, value in values.items():
            setattr(self, name, value)


class Desc(Sized):
    _fields_ = [("size", c.c_size_t)] + fields(
        c.c_int64, "batch heads_q heads_kv head_dim head_dim_v") + [
        ("query", Side), ("key", Side)] + fields(Tensor, "q k v out lse") + fields(
        c.c_double, "scale softcap") + [
        ("bias", Scores), ("bias_offset", Index), ("bias_elements", c.c_int64),
        ("alibi", Tensor), ("sink", Tensor),
        ("align", c.c_int), ("causal", c.c_int32), ("window", c.c_int32),
        ("window_left", c.c_int64), ("window_right", c.c_int64)] + fields(
        TokenMask, "key_mask query_mask") + [("mask", Scores)] + fields(
        Index, "query_docs key_docs prefix") + [
        ("block_mask", Scores), ("block_q", c.c_int64), ("block_k", c.c_int64),
        ("dropout", c.c_double), ("dropout_seed", c.c_uint64), ("dropout_offset", c.c_uint32),
        ("first_sequence", c.c_int64), ("probs", Scores), ("probs_fn", c.c_void_p),
        ("probs_user", c.c_void_p), ("key_sums", Tensor)] + fields(
        Tensor, "dout dlse dq dk dv") + [
        ("dbias", Scores), ("dsink", Tensor), ("workspace", c.c_void_p),
        ("workspace_bytes", c.c_size_t)]


class Rotation(c.Structure):
    _fields_ = [("dim", c.c_int64), ("pairing", c.c_int), ("base", c.c_double),
                ("frequency", c.c_void_p)]


class RotaryDesc(Sized):
    _fields_ = [("size", c.c_size_t)] + fields(c.c_int64, "batch heads head_dim") + [
        ("tokens", Side), ("x", Tensor), ("out", Tensor), ("positions", Index),
        ("offsets", Index), ("rotation", Rotation), ("inverse", c.c_int32), ("report", c.c_void_p)]


class MergeDesc(Sized):
    _fields_ = [("size", c.c_size_t)] + fields(c.c_int64, "batch seqlen heads head_dim parts") + [
        ("part_out", c.POINTER(Tensor)), ("part_lse", c.POINTER(Tensor)), ("out", Tensor),
        ("lse", Tensor)]


class AppendDesc(Sized):
    _fields_ = [("size", c.c_size_t)] + fields(
        c.c_int64, "batch heads_kv head_dim head_dim_v") + [
        ("tokens", Side), ("cache", Side), ("k", Tensor), ("v", Tensor), ("k_cache", Tensor),
        ("v_cache", Tensor), ("rotary", c.c_int32), ("rotation", Rotation), ("positions", Index),
        ("lengths", c.c_void_p), ("report", c.c_void_p)]
