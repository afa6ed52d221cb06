"""What all probes share: the facts they are told, the list they are on, and raw system calls."""

import ctypes
import os

FACTS = {}
PROBES = {}
libc = ctypes.CDLL(None, use_errno=True)
X86 = os.uname().machine == "x86_64"


def probe(function):
    PROBES[function.__name__] = function
    return function


def call(result):
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return True


def syscall(x86, arm, *arguments):
    converted = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return call(libc.syscall(ctypes.c_long(x86 if X86 else arm), *converted))


def opened(path, flags=os.O_RDONLY):
    os.close(os.open(path, flags | os.O_NONBLOCK))
    return True


def content(path):
    with open(path, "rb") as file:
        return file.read().decode(errors="replace")


def overwritten(path, text):
    descriptor = os.open(path, os.O_WRONLY)
    os.write(descriptor, text.encode())
    os.close(descriptor)
    return True
