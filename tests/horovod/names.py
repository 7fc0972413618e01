"""The public names of Horovod 0.28 for TensorFlow and Keras, with their parameters, by module.

`ALL` stands for the set of all ranks, `NONE` for `Compression.none`. A name without parameters is
a constant, a module, or a class that is not called.
"""

from __future__ import annotations

_BASICS: dict[str, str | None] = {
    "init": "comm=None, process_sets=None",
    "start_timeline": "file_path, mark_cycles=False",
    **dict.fromkeys(
        (
            *("shutdown", "is_initialized", "stop_timeline", "size", "local_size", "cross_size"),
            *("rank", "local_rank", "cross_rank", "mpi_threads_supported", "mpi_enabled"),
            *("mpi_built", "gloo_enabled", "gloo_built", "nccl_built", "ddl_built", "ccl_built"),
            *("cuda_built", "rocm_built"),
        ),
        "",
    ),
}
_PROCESS_SETS: dict[str, str | None] = {
    "ProcessSet": "ranks_or_comm",
    "global_process_set": None,
    "add_process_set": "process_set",
    "remove_process_set": "process_set",
}
_PLACES: dict[str, str | None] = {
    "is_homogeneous": "",
    "size_op": "process_set_id=0, name=None",
    "local_size_op": "name=None",
    "rank_op": "name=None",
    "local_rank_op": "name=None",
    "process_set_included_op": "process_set_id=0, name=None",
    "check_num_rank_power_of_2": "num_rank",
    "handle_average_backwards_compatibility": "op, average",
    **dict.fromkeys(("Average", "Sum", "Adasum", "Min", "Max", "Product")),
}
_MOVES: dict[str, str | None] = {
    "allgather": "tensor, name=None, ignore_name_scope=False, process_set=ALL",
    "grouped_allgather": "tensors, name=None, ignore_name_scope=False, process_set=ALL",
    "broadcast": "tensor, root_rank, name=None, ignore_name_scope=False, process_set=ALL",
    "broadcast_": "variables, root_rank, name=None, process_set=ALL",
    "alltoall": "tensor, splits=None, name=None, ignore_name_scope=False, process_set=ALL",
    "join": "",
}
_GROUPS = "num_groups=0, groups=None, process_set=ALL"
_TAPE = (
    "gradtape, device_dense='', device_sparse='', compression=NONE, sparse_as_dense=False, "
    f"op=Average, gradient_predivide_factor=1.0, {_GROUPS}"
)
_DEVICES = "device_dense='', device_sparse='', compression=NONE, sparse_as_dense=False"
_KERAS_OPTIMIZER = f"optimizer, name=None, {_DEVICES}, gradient_predivide_factor=1.0, op=Average"
_PASSES = "backward_passes_per_step=1, average_aggregated_gradients=False"
_KERAS: dict[str, str | None] = {
    **_BASICS,
    **_PROCESS_SETS,
    **dict.fromkeys(("Average", "Sum", "Compression", "callbacks", "elastic")),
    "DistributedOptimizer": (
        f"{_KERAS_OPTIMIZER}, {_PASSES}, {_GROUPS}, scale_local_gradients=True"
    ),
    "PartialDistributedOptimizer": (
        f"{_KERAS_OPTIMIZER}, {_PASSES}, {_GROUPS}, local_layers=None, scale_local_gradients=True"
    ),
    "broadcast_global_variables": "root_rank",
    "allreduce": (
        "value, name=None, average=None, prescale_factor=1.0, postscale_factor=1.0, op=None, "
        "compression=NONE"
    ),
    "allgather": "value, name=None",
    "broadcast": "value, root_rank, name=None",
    "reducescatter": "value, name=None, op=Average",
    "load_model": (
        "filepath, custom_optimizers=None, custom_objects=None, compression=NONE, legacy_opts=False"
    ),
}
_CALLBACKS: dict[str, str | None] = {
    "BroadcastGlobalVariablesCallback": "root_rank, device='', local_variables=None",
    "MetricAverageCallback": "device=''",
    "LearningRateScheduleCallback": (
        "initial_lr, multiplier, start_epoch=0, end_epoch=None, staircase=True, "
        "momentum_correction=True, steps_per_epoch=None"
    ),
    "LearningRateWarmupCallback": (
        "initial_lr, warmup_epochs=5, momentum_correction=True, steps_per_epoch=None, verbose=0"
    ),
    "BestModelCheckpoint": (
        "monitor='val_loss', verbose=0, save_weights_only=False, mode='auto', save_freq='epoch'"
    ),
}
_KERAS_ELASTIC: dict[str, str | None] = {
    "run": "func",
    "KerasState": "model, optimizer=None, **kwargs",
    "CommitStateCallback": "state, batches_per_commit=1",
    "UpdateBatchStateCallback": "state",
    "UpdateEpochStateCallback": "state",
}
_FACTORS = "prescale_factor=1.0, postscale_factor=1.0"
_REDUCED = f"average=None, device_dense='', device_sparse='', compression=NONE, op=None, {_FACTORS}"
_RUN = (
    "func, args=(), kwargs=None, num_proc=1, min_num_proc=None, max_num_proc=None, slots=None, "
    "reset_limit=None, cooldown_range=None, hosts=None, hostfile=None, start_timeout=None, "
    "ssh_port=None, ssh_identity_file=None, disable_cache=None, output_filename=None, "
    "verbose=None, use_gloo=None, use_mpi=None, mpi_args=None, network_interface=None, "
    "executable=None, np=None, min_np=None, max_np=None"
)

#: By module below `horovod`: the names, and the parameters of those that are called.
NAMES: dict[str, dict[str, str | None]] = {
    "": {"run": _RUN, **dict.fromkeys(("__version__", "torch", "mxnet", "spark", "ray", "data"))},
    "runner": {"run": _RUN, "common": None},
    "tensorflow": {
        **_BASICS,
        **_PROCESS_SETS,
        **_PLACES,
        **_MOVES,
        **dict.fromkeys(("Compression", "elastic", "BroadcastGlobalVariablesHook")),
        "gpu_available": "ext_base_name, verbose=False",
        "allreduce": f"tensor, {_REDUCED}, name=None, process_set=ALL, ignore_name_scope=False",
        "grouped_allreduce": (
            f"tensors, {_REDUCED}, process_set=ALL, ignore_name_scope=False, name=None"
        ),
        "reducescatter": (
            "tensor, device_dense='', compression=NONE, op=Average, name=None, process_set=ALL, "
            f"ignore_name_scope=False, {_FACTORS}"
        ),
        "grouped_reducescatter": (
            "tensors, device_dense='', compression=NONE, op=Average, process_set=ALL, " + _FACTORS
        ),
        "broadcast_variables": "variables, root_rank, process_set=ALL, inplace=False",
        "broadcast_global_variables": "root_rank",
        "broadcast_object": "obj, root_rank=0, session=None, name=None, process_set=ALL",
        "broadcast_object_fn": "root_rank=0, session=None, name=None, process_set=ALL",
        "allgather_object": "obj, session=None, name=None, process_set=ALL",
        "SyncBatchNormalization": "fused=False, **kwargs",
        "LocalGradientAggregationHelper": (
            "backward_passes_per_step, allreduce_func, sparse_as_dense, "
            "average_aggregated_gradients, rank, optimizer_type, process_set=ALL, "
            "scale_local_gradients=True, name=''"
        ),
        "DistributedOptimizer": (
            f"optimizer, name=None, use_locking=False, {_DEVICES}, backward_passes_per_step=1, "
            "op=Average, gradient_predivide_factor=1.0, average_aggregated_gradients=False, "
            f"{_GROUPS}, scale_local_gradients=True"
        ),
        "DistributedGradientTape": f"{_TAPE}, scale_local_gradients=True",
        "PartialDistributedGradientTape": (
            f"{_TAPE}, local_layers=None, scale_local_gradients=True"
        ),
    },
    "tensorflow.mpi_ops": {**_BASICS, **_PROCESS_SETS, **_PLACES, **_MOVES},
    "tensorflow.data": dict.fromkeys(("compute_service", "compute_worker")),
    "tensorflow.elastic": {
        "run": "func",
        "TensorFlowKerasState": "model, optimizer=None, backend=None, **kwargs",
        "TensorFlowState": "variables=None, session=None, **kwargs",
    },
    "tensorflow.compression": dict.fromkeys(("Compression", "NoneCompressor", "FP16Compressor")),
    "tensorflow.keras": _KERAS,
    "tensorflow.keras.callbacks": _CALLBACKS,
    "tensorflow.keras.elastic": _KERAS_ELASTIC,
    "keras": {
        **_KERAS,
        "Adasum": None,
        # Without passes.
        "DistributedOptimizer": f"{_KERAS_OPTIMIZER}, {_GROUPS}, scale_local_gradients=True",
        "PartialDistributedOptimizer": (
            f"{_KERAS_OPTIMIZER}, {_GROUPS}, local_layers=None, scale_local_gradients=True"
        ),
    },
    "keras.callbacks": _CALLBACKS,
    "keras.elastic": _KERAS_ELASTIC,
    "common": {"basics": None},
    "common.process_sets": _PROCESS_SETS,
    "common.elastic": {
        "State": "bcast_object, get_rank",
        "ObjectState": "bcast_object, get_rank, **kwargs",
        "run_fn": "func, reset",
        "notification_manager": None,
    },
    "common.exceptions": {
        "HorovodInternalError": None,
        "HostsUpdatedInterrupt": "skip_sync",
        "HorovodVersionMismatchError": "name, version, installed_version",
        "get_version_mismatch_message": "name, version, installed_version",
    },
    "common.util": {
        "extension_available": "ext_base_name, verbose=False",
        "gpu_available": "ext_base_name, verbose=False",
        **dict.fromkeys(
            ("mpi_built", "gloo_built", "nccl_built", "ddl_built", "ccl_built"), "verbose=False"
        ),
        "env": "**kwargs",
        "get_average_backwards_compatibility_fun": "reduce_ops",
        "is_version_greater_equal_than": "ver, target",
        "num_rank_is_power_2": "num_rank",
        "split_list": "l, n",
        "is_iterable": "x",
    },
}

#: What our functions take beyond Horovod's parameters, with the reason.
MORE = {
    "HostsUpdatedInterrupt": ["leaves"],  # ringar lets a rank leave that has received SIGTERM
    "State": ["objects"],  # what a subclass hands on to ringar's state
}

_ASYNC = [
    *("barrier", "allreduce_async", "grouped_allreduce_async"),
    *("reducescatter_async", "grouped_reducescatter_async", "allgather_async"),
    *("grouped_allgather_async", "broadcast_async", "broadcast_async_", "alltoall_async"),
]
# Horovod has those of `horovod.tensorflow` in its __init__.
_REDUCTIONS = ["allreduce", "grouped_allreduce", "reducescatter", "grouped_reducescatter"]
#: What ringar adds in Horovod's manner, from horovod.torch.
ADDED = {
    "tensorflow": ["poll", "synchronize", *_ASYNC],
    "tensorflow.mpi_ops": [*_REDUCTIONS, *_ASYNC],
}
