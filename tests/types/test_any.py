"""Signatures of public names say types: `Any` stands only where there is none to say."""

from __future__ import annotations

import inspect
import operator
import re
import sys
from collections.abc import Iterator
from typing import Any

import ringar
from ringar.collectives.statistics import Traffic
from ringar.keras.apply import DistributedMixin
from ringar.parallel.pipeline.module import Event
from ringar.research.wavefront import Plan
from tests.types.test_names import public_names

#: Classes of objects that public functions return.
RETURNED = {
    "an optimizer": DistributedMixin,
    "an event": Event,
    "a plan": Plan,
    "a traffic": Traffic,
}

#: Parameters, results and attributes that are `Any`, as patterns, and why.
ALLOWED = {
    r"ringar\.layers\.\w+\.\w+:\*+(args|kwargs)": "Keras' layer decides what it takes",
    r"ringar\.parallel\.Pipelined\.\w+:\*+(args|kwargs)": "Keras' model decides what it takes",
    r"ringar\.parallel\.Wavefront\.\w+:\*+(args|kwargs)": "Keras' layer decides what it takes",
    r"ringar\.parallel\.(Pipelined|SparseNet)\.\w+:\*+(args|kwargs)": "Keras' model decides "
    "what it takes",
    r"ringar\.parallel\.Pipelined\.(evaluate|predict|\w+_on_batch):return": "model and arguments "
    "decide it; with a union, each caller would have to tell its members apart",
    r"ringar\.predict:return": "as above",
    r"an optimizer\.(save|load)_own_variables:store": "h5py's group, or a dict",
    r"ringar\.Compression\.\w+\.decompress:context": "a compressor's own type, which a subclass "
    "could not name if the base class said object",
    r"ringar\.elastic\.\w+\.unpack:packed": "a state's own type, in the same way",
}


def members(name: str, value: Any) -> Iterator[tuple[str, object]]:
    """Yield a public object, and the classes, functions and properties in it, with their names."""
    value = inspect.unwrap(getattr(value, "fget", getattr(value, "__func__", value)))
    if inspect.isfunction(value):
        yield name, value
    for cls in inspect.getmro(value) if inspect.isclass(value) else ():
        if cls.__module__.startswith(("ringar.", "launchers.")):
            yield name, cls
            for member, attribute in vars(cls).items():
                if not member.startswith("_") or member in ("__init__", "__call__"):
                    yield from members(f"{name}.{member}", attribute)


def types_of(value: object) -> dict[str, str]:
    """Return the annotations of a function or of a class' public attributes, as in the source."""
    if inspect.isclass(value):
        types = inspect.get_annotations(value)
        return {key: str(kind) for key, kind in types.items() if not key.startswith("_")}
    assert inspect.isfunction(value)
    signature = inspect.signature(value)
    types = {str(p).partition(":")[0]: str(p.annotation) for p in signature.parameters.values()}
    return {**types, "return": str(signature.return_annotation)}


def says_any(annotation: str, module: str) -> bool:
    """Return whether an annotation, or an alias of the module in it, has `Any`."""
    words = re.findall(r"\w+", annotation)
    return any(
        word == "Any" or "typing.Any" in repr(getattr(sys.modules[module], word, None))
        for word in words
    )


def test_public_signatures_say_types() -> None:
    public = {name: operator.attrgetter(name.partition(".")[2])(ringar) for name in public_names()}
    places = {
        f"{name}:{key}"
        for root, value in {**public, **RETURNED}.items()
        for name, member in members(root, value)
        for key, annotation in types_of(member).items()
        if says_any(annotation, str(getattr(member, "__module__", "")))
    }
    refused = {place for place in places if not any(re.fullmatch(p, place) for p in ALLOWED)}
    assert not refused, "\n".join(sorted(refused))
    unused = [p for p in ALLOWED if not any(re.fullmatch(p, place) for place in places)]
    assert not unused, f"no longer Any: {unused}"
