"""Devices and system calls that lead deep into the kernel."""

import ctypes
import errno
import fcntl
import glob
import os
import struct
import threading
import time

from probing import X86, call, content, libc, opened, probe, syscall


@probe
def bpf():
    return syscall(321, 280, 0, struct.pack("IIII", 2, 4, 4, 1) + bytes(100), 116)


@probe
def perf_events():
    return syscall(298, 241, struct.pack("II", 1, 112) + bytes(104), 0, -1, -1, 0)


@probe
def io_uring():
    return syscall(425, 425, 8, bytes(120))


@probe
def userfaultfd():
    return syscall(323, 282, 1)


@probe
def kernel_keys():
    return syscall(248, 217, b"user", b"abuse", b"x", 1, -3)


@probe
def open_by_handle():
    return syscall(304, 265, -100, bytes(136), 0) or True


@probe
def read_the_kernel_log():
    return syscall(103, 116, 3, ctypes.create_string_buffer(4096), 4096)


@probe
def kernel_log_device():
    return opened("/dev/kmsg")


@probe
def kernel_addresses():
    return any(
        not line.startswith("0000000000000000") for line in content("/proc/kallsyms").splitlines()
    )


@probe
def disk_device():
    return [
        path for path in glob.glob("/dev/[vsx]d[a-z]") + glob.glob("/dev/nvme*") if opened(path)
    ]


@probe
def memory_device():
    return opened("/dev/mem") or opened("/dev/port")


@probe
def kvm_device():
    return opened("/dev/kvm", os.O_RDWR)


@probe
def fuse_device():
    return opened("/dev/fuse", os.O_RDWR)


@probe
def tun_device():
    return opened("/dev/net/tun", os.O_RDWR)


@probe
def gpu_device():
    return glob.glob("/dev/nvidia*") + glob.glob("/dev/dri/*")


@probe
def sysrq():
    opened("/proc/sysrq-trigger", os.O_WRONLY)
    return True


@probe
def write_sys():
    return [
        path
        for path in ("/sys/kernel/uevent_helper", "/sys/power/state")
        if opened(path, os.O_WRONLY)
    ]


@probe
def push_input_into_a_terminal():
    fcntl.ioctl(0, 0x5412, b"x")
    return True


@probe
def push_input_with_a_dirty_upper_half():
    return syscall(16, 29, 0, 0x5412 | (1 << 32), b"x")


@probe
def set_the_clock():
    time.clock_settime(time.CLOCK_REALTIME, time.time())
    return True


@probe
def load_a_kernel_module():
    number = libc.syscall(ctypes.c_long(175 if X86 else 105), b"", ctypes.c_long(0), b"")
    return ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS) or number == 0


@probe
def x32_system_calls():
    # The same call under another number would slip past a filter that compares numbers only.
    return call(
        libc.syscall(
            ctypes.c_long(0x40000000 | 165), b"x", b"/tmp", b"tmpfs", ctypes.c_long(0), None
        )
    )


@probe
def system_calls_newer_than_the_filter():
    libc.syscall(ctypes.c_long(470), *[ctypes.c_long(0)] * 4)
    return ctypes.get_errno() != errno.ENOSYS


@probe
def namespaces_by_clone_in_a_thread():
    outcome = []
    thread = threading.Thread(target=lambda: outcome.append(libc.unshare(0x10000000)))
    thread.start()
    thread.join()
    return outcome == [0]
