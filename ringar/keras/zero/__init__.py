"""Stage 3 of ZeRO: each rank keeps slices of weights, and gathers a layer's weights for its call.

units.py          which weights the call of a layer needs; how weights are cut, and made whole
passes.py         a forward pass with its backward pass; its plan, for ranks without data
gathering.py      the all-gather of some weights, whose gradient is a reduce-scatter
regather.py       the second all-gather, which the backward pass reads
forward.py        `evaluate` and `predict`
weight_slice.py   the storage of a sharded weight
whole_weight.py   a gathered weight, as gradient tapes watch it
graphs.py         the graphs in which a layer may read one
recomputation.py  functions that read weights again in the backward pass
session.py        the state that these files share

Slots of optimizers, for all stages:

offload.py        slots in the host's memory, or in a file
slot_files.py     files of models, with whole slots and weights
"""
