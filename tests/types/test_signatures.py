"""No public signature says `Any` where a type can be said."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import ringar
from tests.types.test_names import public_names

#: Methods of Keras' models and layers, whose data have the user's structure.
OF_KERAS = {
    *("call", "compile", "evaluate", "fit", "from_config", "get_metrics_result", "inner_loop"),
    *("predict", "predict_step", "test_step", "train_step"),
}
#: Where `Any` says what is so.
ALLOWED = {
    "Dataset.__getitem__ ->": "a batch, in the structure of the data",
    "Dataset.batches ->": "batches, in the structure of the data",
    "KerasState.unpack: packed": "what `packed` has returned",
    "ObjectState.unpack: packed": "what `packed` has returned",
    "State.unpack: packed": "what `packed` has returned",
    "predict ->": "predictions, in the structure of the model's outputs",
}


def functions_of(name: str) -> Iterator[tuple[str, Any]]:
    """Yield a function, or the methods of a class that are public and its own."""
    found = attrgetter(name.removeprefix("ringar."))(ringar)
    if inspect.isclass(found):
        for base in found.__mro__:
            for member, value in vars(base).items():
                function = getattr(value, "__func__", getattr(value, "fget", value))
                is_public = not member.startswith("_") or member in ("__init__", "__getitem__")
                is_ours = base.__module__.startswith("ringar")
                if is_ours and is_public and inspect.isfunction(function):
                    yield f"{base.__name__}.{member}", function
    elif inspect.isfunction(found):
        yield found.__name__, found


def places_of_any(function: Any) -> Iterator[str]:
    """Yield the parameters, and "->" for the result, whose annotation has `Any`."""
    signature = inspect.signature(function)
    for parameter in signature.parameters.values():
        # What is passed on to Keras as it is, `**kwargs`, has Keras' types.
        passed_on = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if not passed_on and re.search(r"\bAny\b", str(parameter.annotation)):
            yield f": {parameter.name}"
    if re.search(r"\bAny\b", str(signature.return_annotation)):
        yield " ->"


def test_no_public_signature_leaves_a_type_out() -> None:
    found = {
        name + place
        for public in public_names()
        for name, function in functions_of(public)
        for place in places_of_any(function)
        if name.partition(".")[2] not in OF_KERAS
    }
    assert found == ALLOWED.keys()
