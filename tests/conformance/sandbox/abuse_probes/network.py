"""Other machines, this one's services, other sandboxes' sockets."""

import fcntl
import socket
import struct

from probing import FACTS, probe


def connected(family, address, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as s:
        s.settimeout(1)
        s.connect(address)
    return True


@probe
def connect_to_host_loopback():
    return connected(socket.AF_INET, ("127.0.0.1", FACTS["host_port"]))


@probe
def connect_to_host_loopback_v6():
    return connected(socket.AF_INET6, ("::1", FACTS["host_port"]))


@probe
def connect_to_the_host_by_its_address():
    return connected(socket.AF_INET, (FACTS["host_address"], FACTS["host_port"]))


@probe
def connect_to_host_abstract_socket():
    return connected(socket.AF_UNIX, "\0" + FACTS["host_abstract"])


@probe
def connect_to_host_socket_file():
    return connected(socket.AF_UNIX, FACTS["host_socket"])


@probe
def connect_to_sibling_loopback():
    return connected(socket.AF_INET, ("127.0.0.1", FACTS["sibling_port"]))


@probe
def connect_to_sibling_abstract_socket():
    return connected(socket.AF_UNIX, "\0" + FACTS["sibling_abstract"])


@probe
def connect_to_the_internet():
    return connected(socket.AF_INET, ("192.0.2.1", 80), socket.SOCK_DGRAM)


@probe
def connect_to_a_metadata_service():
    return connected(socket.AF_INET, ("169.254.169.254", 80), socket.SOCK_DGRAM)


@probe
def see_interfaces_of_the_host():
    return [
        name
        for _, name in socket.if_nameindex()
        if name != "lo"
        and "tun" not in name
        and not name.startswith(("sit", "gre", "erspan", "ip6", "teql", "dummy"))
    ]


def made(family, kind, protocol=0):
    socket.socket(family, kind, protocol).close()
    return True


@probe
def vsock_to_the_hypervisor():
    return made(40, socket.SOCK_STREAM)


@probe
def packet_socket():
    return made(17, socket.SOCK_RAW, 0x300)


@probe
def raw_icmp_socket():
    return made(socket.AF_INET, socket.SOCK_RAW, 1)


@probe
def kernel_crypto_socket():
    return made(38, socket.SOCK_SEQPACKET)


@probe
def netlink_audit_socket():
    return made(16, socket.SOCK_RAW, 9)


@probe
def bluetooth_socket():
    return made(31, socket.SOCK_RAW, 1)


@probe
def raise_an_interface():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, 0x8914, struct.pack("16sH14s", b"lo", 0, b""))
    return True
