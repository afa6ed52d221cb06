"""The process that runs the sandbox, and others of the host."""

import ctypes
import glob
import os
import signal
import struct

from probing import FACTS, content, opened, overwritten, probe, syscall


@probe
def read_the_parents_secrets():
    for path in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
        try:
            if FACTS["secret"] in content(path):
                return path
        except OSError:
            continue


@probe
def read_environ_of_pid_1():
    return content("/proc/1/environ")


@probe
def read_memory_of_pid_1():
    return opened("/proc/1/mem")


@probe
def read_maps_of_pid_1():
    return content("/proc/1/maps")


@probe
def list_descriptors_of_pid_1():
    return os.listdir("/proc/1/fd")


@probe
def ptrace_pid_1():
    PTRACE_SEIZE = 0x4206
    return syscall(101, 117, PTRACE_SEIZE, 1, 0, 0)


@probe
def ptrace_another_process():
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        return syscall(101, 117, 0x4206, child, 0, 0)
    finally:
        os.kill(child, 9)


@probe
def process_vm_readv_pid_1():
    buffer = ctypes.create_string_buffer(8)
    vector = struct.pack("PN", ctypes.addressof(buffer), 8)
    return syscall(310, 270, 1, vector, 1, vector, 1, 0)


@probe
def take_a_descriptor_of_pid_1():
    descriptor = os.pidfd_open(1)
    return syscall(438, 438, descriptor, 3, 0)


@probe
def lower_the_oom_score():
    return overwritten("/proc/self/oom_score_adj", "-1000")


@probe
def reset_the_oom_score():
    """To the guest's: then the guest is as likely to be killed for memory as the command that takes it."""
    return overwritten("/proc/self/oom_score_adj", "0")


@probe
def change_the_oom_score_of_pid_1():
    return overwritten("/proc/1/oom_score_adj", "1000")


@probe
def see_host_processes():
    return os.path.exists(f"/proc/{FACTS['host_pid']}/stat") and "python" in content(
        f"/proc/{FACTS['host_pid']}/cmdline"
    )


@probe
def signal_a_host_process():
    os.kill(FACTS["host_pid"], 0)
    return True


@probe
def signal_a_sibling():
    os.kill(FACTS["sibling_pid"], 0)
    return True
