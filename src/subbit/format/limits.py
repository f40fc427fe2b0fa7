"""Constants of the `.sbit` file that Python and the C core (`csrc/program.h`) must agree on; see docs/format.md."""

from __future__ import annotations

from typing import Final

MAGIC: Final = b"SBIT"
BYTE_ORDER_MARK: Final = b"\xff\xfe"  # 0xFEFF, least significant byte first
MAJOR: Final = 1
MINOR: Final = 1  # the newest that is read; a file has the lowest that suffices
MINOR_OF_LEVELS: Final = 1

HEADER_SIZE: Final = 32
CHECKED_FROM: Final = 16  # the checksum covers everything from here to the end

MAX_FILE: Final = 2**32 - 1
MAX_OPS: Final = 16384
MAX_INPUTS: Final = 4096  # of one concatenation
MAX_RANK: Final = 6
MAX_DIM: Final = 2**24
MAX_ELEMENTS: Final = 2**28  # of one value
MAX_WEIGHTS: Final = 2**30  # of one layer, unfolded
MAX_FILTER: Final = 2**24  # numbers of one filter, unfolded
MAX_FILTERS: Final = 2**16  # m of a bank
MAX_BLOCKS: Final = 2**24  # c_out · k of all stacked weights together: their indices may take nothing in the file
MAX_SHARED: Final = 2**27  # numbers of all shared weights together: they take nothing in the file
MAX_NAME: Final = 255  # bytes
MAX_LABELS: Final = 2**16
MAX_LABEL: Final = 1023  # bytes
MIN_FACTOR: Final = 2.0**-24  # of an upsampling
MAX_FACTOR: Final = 2.0**24
MIN_STEP: Final = 2.0**-64  # between two levels of an input
MAX_STEP: Final = 2.0**64
MAX_UINT: Final = 2**31 - 1  # any integer of the program section
