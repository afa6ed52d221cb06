"""The process that makes local sandboxes, and what it does to a child before untrusted code runs in it.

Standard library and ctypes only. It is executed as a fresh interpreter with an empty environment (`start`), never
forked from the host program, whose threads, secrets and memory it must not inherit. Files: `start` (bootstrap) ·
`server` (requests, children) · `rootfs` (what is visible inside) · `confine` (locking a child up) ·
`landlock` (the weaker level) · `cgroups` (limits) · `linux` (system calls that Python lacks).
"""
