# SPDX-License-Identifier: BSD-3-Clause
"""ONNX Runtime's MultiHeadAttention and GroupQueryAttention, one-operator graphs whose inputs and
outputs are bound to the arrays, one run per sequence.

Decode with GroupQueryAttention is what the operator is made for: the key and value of the newest
token are appended to a cache [1, Hkv, S, D] that is input and output in place.
"""
import numpy as np

import shapes
from peer import Absent, Job

try:
    import onnxruntime
    from onnx import TensorProto, helper
except (ImportError, OSError) as error:
    onnxruntime, missing = None, error


def onnx_type(dtype):
    return {"f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16,
            "bf16": TensorProto.BFLOAT16}[dtype]


def graph(op, dtype, inputs, outputs, **attributes):
    """A model of one operator. inputs and outputs: pairs (name, rank); names ending in _length are
    int32, an empty name is an operand left out."""
    def info(name, rank):
        return helper.make_tensor_value_info(
            name, TensorProto.INT32 if name.endswith("_length") else onnx_type(dtype),
            [f"{name}_{axis}" for axis in range(rank)])

    node = helper.make_node(op, [n for n, _ in inputs], [n for n, _ in outputs],
                            domain="com.microsoft", **attributes)
    model = helper.make_model(
        helper.make_graph([node], op, [info(*i) for i in inputs if i[0]],
                          [info(*o) for o in outputs]),
        opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)],
        ir_version=10)
    return model.SerializeToString()


def session(model, threads, spin):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spin)))
    try:
        return onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
    except Exception as error: # its exceptions share no base class
        raise Absent(" ".join(str(error).split())) from error


class Binding:
    """Arrays bound to a session's operands; keeps them alive."""

    def __init__(self, owner, inputs, outputs):
        self.session, self.arrays = owner, (inputs, outputs)
        self.io = owner.io_binding()
        for bind, arrays in ((self.io.bind_input, inputs), (self.io.bind_output, outputs)):
            for name, (array, element_type, shape) in arrays.items():
                bind(name, "cpu", 0, element_type, shape, array.ctypes.data)

    def run(self):
        self.session.run_with_iobinding(self.io)


class Onnx:
    def __init__(self, spin):
        self.spin = spin

    def prepare(self, case, dtype, sets, threads):
        if onnxruntime is None:
            raise Absent(f"cannot be loaded: {missing}")
        self.refuse(case)
        owner = session(self.model(case, dtype), threads, self.spin)
        outs = [shapes.empty(s.q.shape, dtype) for s in sets]
        calls = [self.call(owner, case, dtype, s, out) for s, out in zip(sets, outs)]
        return Job(calls, lambda: outs[0].astype(np.float32), "spinning" if self.spin else "")

    def call(self, owner, case, dtype, s, out):
        bindings = [self.bind(owner, case, dtype, s, out, *rows) for rows in case.sequences()]

        def call():
            for binding in bindings:
                binding.run()
        return call


def flat(array, dtype):
    """[S, H, D] as the operand [1, S, H * D]."""
    return array, onnx_type(dtype), (1, len(array), array[0].size)


def integers(array):
    return array, TensorProto.INT32, array.shape


class MultiHead(Onnx):
    name = "ort-mha"

    def refuse(self, case):
        if case.heads_q != case.heads_kv:
            raise Absent("MultiHeadAttention has no grouped heads")
        if case.causal and case.lengths_q != case.lengths_k:
            raise Absent("unidirectional lines up the first query with the first key")

    def model(self, case, dtype):
        return graph("MultiHeadAttention", dtype, (("q", 3), ("k", 3), ("v", 3)), (("out", 3),),
                     num_heads=case.heads_q, unidirectional=int(case.causal))

    def bind(self, owner, case, dtype, s, out, rows_q, rows_k):
        inputs = {"q": flat(s.q[rows_q], dtype), "k": flat(s.k[rows_k], dtype),
                  "v": flat(s.v[rows_k], dtype)}
        return Binding(owner, inputs, {"out": flat(out[rows_q], dtype)})


class GroupQuery(Onnx):
    name = "ort-gqa"

    def refuse(self, case):
        if not case.causal and not case.is_decode:
            raise Absent("GroupQueryAttention is always causal")

    def model(self, case, dtype):
        past = (("past_k", 4), ("past_v", 4)) if case.is_decode else (("", 0), ("", 0))
        return graph("GroupQueryAttention", dtype,
                     (("q", 3), ("k", 3), ("v", 3), *past, ("past_length", 1), ("total_length", 0)),
                     (("out", 3), ("present_k", 4), ("present_v", 4)),
                     num_heads=case.heads_q, kv_num_heads=case.heads_kv)

    def bind(self, owner, case, dtype, s, out, rows_q, rows_k):
        k, v = s.k[rows_k], s.v[rows_k]
        nk = len(k)
        cache = {"k": shapes.empty((1, case.heads_kv, nk, case.head_dim), dtype)}
        cache["v"] = shapes.empty(cache["k"].shape, dtype)
        bound = {n: (a, onnx_type(dtype), a.shape) for n, a in cache.items()}
        inputs = {"past_length": integers(np.array([nk - 1], np.int32)),
                  "total_length": integers(np.array(nk, np.int32))}
        if case.is_decode:
            cache["k"][0], cache["v"][0] = k.swapaxes(0, 1), v.swapaxes(0, 1)
            inputs |= {"past_k": bound["k"], "past_v": bound["v"]}
            k, v = k[-1:], v[-1:]
        inputs |= {"q": flat(s.q[rows_q], dtype), "k": flat(k, dtype), "v": flat(v, dtype)}
        return Binding(owner, inputs, {"out": flat(out[rows_q], dtype), "present_k": bound["k"],
                                       "present_v": bound["v"]})
