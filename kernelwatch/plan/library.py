"""What counts of a shared library: what a process loads of it."""

from io import BytesIO

MAGIC = b"\x7fELF"
CUDA = "EM_CUDA"
BUILD = ".note.gnu.build-id"  # a hash of all of the file


def loaded(content: bytes) -> bytes:
    """The sections of an ELF library or program that are loaded into memory, with their names and places.

    Debug information is left out, since it names the folder of the build: the same sources that are built in two
    folders are the same library. Everything else, cubins and damaged files too, is returned as it is.
    """
    if not content.startswith(MAGIC):
        return content
    from elftools.common.exceptions import ELFError  # not at the top: asv forks from a process that imports this module
    from elftools.elf.constants import SH_FLAGS
    from elftools.elf.elffile import ELFFile

    try:
        file = ELFFile(BytesIO(content))
        if file["e_machine"] == CUDA:
            return content
        parts = [file["e_machine"].encode()]
        for section in file.iter_sections():
            if section["sh_flags"] & SH_FLAGS.SHF_ALLOC and section.name != BUILD:
                data = b"" if section["sh_type"] == "SHT_NOBITS" else section.data()
                parts += [f"{section.name} {section['sh_addr']} {section['sh_size']}".encode(), data]
    except (ELFError, OverflowError, AttributeError, UnicodeDecodeError):  # of damaged files
        return content
    return b"\0".join(parts) if len(parts) > 1 else content
