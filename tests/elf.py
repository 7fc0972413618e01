"""What shared libraries export, read from their files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from elftools.elf.elffile import ELFFile


def exports(library: Path, names: Iterable[str]) -> set[str]:
    """Return those of the names that a library exports, by its hash table: it may have millions."""
    with library.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".gnu.hash")
        symbols = {name: table.get_symbol(name) for name in names}
        return {name for name, s in symbols.items() if s and s["st_shndx"] != "SHN_UNDEF"}
