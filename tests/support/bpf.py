"""An interpreter of classic BPF programs, as the kernel runs them for seccomp: see linux/filter.h and seccomp(2)."""

import struct
from collections.abc import Sequence

__all__ = ["decision"]


def decision(program: bytes, architecture: int, number: int, arguments: Sequence[int] = ()) -> int:
    """What the program returns for a system call: an action of seccomp, with its data in the low 16 bits.

    Raises ValueError where the kernel would not take the program: an unknown instruction, or a jump past the end.
    """
    six = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    data = struct.pack("<IIQ6Q", number, architecture, 0, *(value & 2**64 - 1 for value in six))
    instructions = list(struct.iter_unpack("<HBBI", program))
    register, at = 0, 0
    while at < len(instructions):
        code, yes, no, constant = instructions[at]
        at += 1
        match code:
            case 0x20:
                (register,) = struct.unpack_from("<I", data, constant)
            case 0x54:
                register &= constant
            case 0x05:
                at += constant
            case 0x15:
                at += yes if register == constant else no
            case 0x25:
                at += yes if register > constant else no
            case 0x35:
                at += yes if register >= constant else no
            case 0x45:
                at += yes if register & constant else no
            case 0x06:
                return int(constant)
            case _:
                raise ValueError(f"no instruction of this interpreter: {code:#x}")
    raise ValueError("the program ends without a decision")
