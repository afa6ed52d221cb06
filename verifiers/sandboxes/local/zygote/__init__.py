"""The process that makes local sandboxes by forking, and the confinement of each child before untrusted code runs.

Standard library and ctypes only. `start` executes the zygote in a fresh interpreter with an empty environment, so
that
it inherits no threads, secrets or memory of the host. Read in this order: `start` (entry point) · `server`
(requests
and children) · `rootfs` (visible files) · `confine` (steps of the confinement) · `cgroups` (limits) · `plain` and
`landlock` (sandboxes without namespaces) · `linux` (system calls that Python lacks).
"""
