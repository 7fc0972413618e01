"""tf_ops/kernels/xla_ffi_abi.h says what the header of XLA in TensorFlow's wheel says.

ringar builds without TensorFlow, from its own declarations, and finds the interface by name.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tensorflow as tf

from tests import compiler
from tests.plugin.jobs import ROOT

pytestmark = pytest.mark.job

STRUCTS = {
    "Extension": ("XLA_FFI_Extension_Base", "struct_size type next"),
    "ApiVersion": (
        "XLA_FFI_Api_Version",
        "struct_size extension=extension_start major=major_version minor=minor_version",
    ),
    "ErrorCreateArgs": (
        "XLA_FFI_Error_Create_Args",
        "struct_size extension=extension_start message code=errc",
    ),
    "ErrorDestroyArgs": (
        "XLA_FFI_Error_Destroy_Args",
        "struct_size extension=extension_start error",
    ),
    "Buffer": (
        "XLA_FFI_Buffer",
        "struct_size extension=extension_start dtype data rank dims",
    ),
    "Bytes": ("XLA_FFI_ByteSpan", "data=ptr size=len"),
    "Buffers": ("XLA_FFI_Args", "struct_size extension=extension_start size types buffers=args"),
    "Attrs": (
        "XLA_FFI_Attrs",
        "struct_size extension=extension_start size types names values=attrs",
    ),
    "CallFrame": (
        "XLA_FFI_CallFrame",
        "struct_size extension=extension_start api context=ctx stage operands=args results=rets "
        "attrs",
    ),
    "Bundle": ("XLA_FFI_Handler_Bundle", "instantiate prepare initialize execute"),
    "RegisterArgs": (
        "XLA_FFI_Handler_Register_Args",
        "struct_size extension=extension_start name platform bundle traits",
    ),
    "StreamGetArgs": (
        "XLA_FFI_Stream_Get_Args",
        "struct_size extension=extension_start context=ctx stream",
    ),
    "Metadata": ("XLA_FFI_Metadata", "struct_size version=api_version traits"),
    "MetadataExtension": ("XLA_FFI_Metadata_Extension", "base=extension_base metadata"),
    "Api": (
        "XLA_FFI_Api",
        "struct_size extension=extension_start version=api_version internal=internal_api "
        "error_create=XLA_FFI_Error_Create error_get_message=XLA_FFI_Error_GetMessage "
        "error_destroy=XLA_FFI_Error_Destroy handler_register=XLA_FFI_Handler_Register "
        "stream_get=XLA_FFI_Stream_Get",
    ),
}
"""Our structs, with XLA's and the members of both; `ours=theirs` where the names differ."""

CONSTANTS = {
    "kExtensionMetadata": "XLA_FFI_Extension_Metadata",
    "kAttrString": "XLA_FFI_AttrType_STRING",
    "kExecute": "XLA_FFI_ExecutionStage_EXECUTE",
    "kInternal": "XLA_FFI_Error_Code_INTERNAL",
}


@pytest.fixture(scope="module")
def include() -> Path:
    """The folder of TensorFlow's headers, if its interface is of the version that ringar calls."""
    folder = Path(tf.sysconfig.get_include())
    header = folder / "xla/ffi/api/c_api.h"
    minor = re.search(r"XLA_FFI_API_MINOR (\d+)", header.read_text()) if header.exists() else None
    if minor is None or int(minor[1]) < 1:
        pytest.skip(f"TensorFlow {tf.__version__} has no typed interface of version 0.1")
    return folder


def checks() -> str:
    lines = ["#include <xla/ffi/api/c_api.h>", '#include "kernels/xla_ffi_abi.h"']
    lines.append("namespace ringar::ffi {")
    for struct, (xla_struct, members) in STRUCTS.items():
        for pair in members.split():
            member, _, xla_member = pair.partition("=")
            xla_member = xla_member or member
            lines += [
                f"static_assert(offsetof({struct}, {member}) == "
                f"offsetof({xla_struct}, {xla_member}));",
                f"static_assert(sizeof({struct}::{member}) == sizeof({xla_struct}::{xla_member}));",
            ]
    lines += [f"static_assert({name} == {value});" for name, value in CONSTANTS.items()]
    lines += [
        "static_assert(kMajor == XLA_FFI_API_MAJOR && kMinor <= XLA_FFI_API_MINOR);",
        "static_assert(sizeof(Api) <= sizeof(XLA_FFI_Api));",
        "static_assert(RegisterArgs{}.struct_size == XLA_FFI_Handler_Register_Args_STRUCT_SIZE);",
        "static_assert(sizeof(StreamGetArgs) == XLA_FFI_Stream_Get_Args_STRUCT_SIZE);",
        "static_assert(sizeof(ErrorDestroyArgs) == XLA_FFI_Error_Destroy_Args_STRUCT_SIZE);",
        "}  // namespace ringar::ffi",
    ]
    return "\n".join(lines) + "\n"


def test_declarations_are_those_of_the_header(include: Path, tmp_path: Path) -> None:
    options = (f"-I{ROOT / 'tf_ops'}", f"-isystem{include}", "-Wno-invalid-offsetof")
    result = compiler.check(checks(), tmp_path, *options)
    assert result.returncode == 0, result.stderr


def test_every_struct_is_checked() -> None:
    text = (ROOT / "tf_ops/kernels/xla_ffi_abi.h").read_text()
    declared = dict(re.findall(r"^struct (\w+) \{\n(.*?)\n\};", text, re.MULTILINE | re.DOTALL))
    assert declared.keys() == STRUCTS.keys()
    for name, body in declared.items():
        code = re.sub(r"//.*", "", body)
        members = {member.partition("=")[0] for member in STRUCTS[name][1].split()}
        assert members <= set(re.findall(r"\w+", code))
        assert len(members) == sum(
            1 + statement.split("=")[0].split("(")[0].count(",")
            for statement in code.split(";")
            if statement.strip()
        ), name
