"""Operations: health, metrics, backup, repair, export.

`backup` has the commands of `vf-hub` that work on a whole hub.
"""
