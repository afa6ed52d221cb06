"""`SandboxSpec.folders`: directories that programs expect, writable and each sandbox's own."""

import pytest
from pydantic import ValidationError

from verifiers.sandboxes import SandboxCapabilityMissing, SandboxImageError, SandboxSpec
from verifiers.sandboxes.containers import ContainerConfig, run_arguments
from verifiers.sandboxes.local import LocalBackend
from verifiers.sandboxes.unsafe_local import UnsafeLocalBackend

FOLDERS = ("/app", "/logs/deep", "/opt/work")


async def test_they_can_be_written_are_empty_and_each_sandboxs_own():
    spec = SandboxSpec(folders=FOLDERS, disk_mb=8)
    async with LocalBackend() as backend:
        async with await backend.create(spec) as sandbox:
            done = await sandbox.exec(
                "for d in /app /logs/deep /opt/work; do ls -A $d; echo $d > $d/file; cat $d/file; done"
            )
            assert (done.text, done.error_text) == ("/app\n/logs/deep\n/opt/work\n", "")
            assert await sandbox.read("/app/file") == b"/app\n"
            beside = await sandbox.exec("touch /logs/file")
            assert "Read-only file system" in beside.error_text
            full = await sandbox.exec("head -c 20000000 /dev/zero > /app/big")
            assert "No space left" in full.error_text
        async with await backend.create(spec) as other:
            assert (await other.exec("ls -A /app")).text == ""
        async with await backend.create(SandboxSpec()) as plain:
            assert not (await plain.exec("test -e /app")).ok


@pytest.mark.parametrize("folder", ["/usr/x", "/tmp/x", "/box", "/etc"])
async def test_what_the_system_needs_is_not_covered(folder: str):
    async with LocalBackend() as backend:
        with pytest.raises(SandboxImageError, match=folder):
            await backend.create(SandboxSpec(folders=(folder,)))


@pytest.mark.parametrize("folder", ["app", "/", "", "/a/../b", "/a/./b", "/a//b", "/a:b", "/a,b"])
def test_only_plain_absolute_paths_are_folders(folder: str):
    with pytest.raises(ValidationError, match="is not a folder"):
        SandboxSpec(folders=(folder,))


async def test_this_machine_itself_is_given_no_folders():
    spec = SandboxSpec(isolation_min="none", folders=("/app",))
    async with UnsafeLocalBackend() as backend:
        with pytest.raises(SandboxCapabilityMissing, match="/app"):
            await backend.create(spec)


def test_containers_mount_them():
    arguments = run_arguments("name", SandboxSpec(folders=("/app",), disk_mb=8), ContainerConfig())
    assert [a for a in arguments if a.startswith("--tmpfs=/app:rw")]
