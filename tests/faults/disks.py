"""Small disks to fill up or to make read-only: file systems in memory, which root may mount."""

import contextlib
import os
import subprocess


class MountError(RuntimeError):
    """Raised where no file system can be mounted."""


@contextlib.contextmanager
def small_disk(folder, size_bytes):
    """Mount a file system of a size on a folder while this lasts; gives a function that changes its options.

    Args:
        folder (`Path`): An empty folder, made if there is none.
        size_bytes (`int`): Room on it, rounded up to whole pages.

    Raises:
        MountError: This process may not mount.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _mount("-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", folder)
    try:
        yield lambda options: _mount("-o", f"remount,{options}", folder)
    finally:
        unmount(folder)


def unmount(folder):
    """Take a disk off its folder, if there is one, such as that of a process which was killed."""
    subprocess.run(["umount", "--lazy", folder], capture_output=True)


def can_mount(folder):
    """Tell whether this process may mount a file system."""
    try:
        with small_disk(folder, 4096):
            return True
    except (MountError, OSError):
        return False


def used_bytes(folder):
    """Return how many bytes the files of a folder take on a disk of whole pages."""
    files = [os.lstat(os.path.join(path, name)).st_size for path, _, names in os.walk(folder) for name in names]
    return sum(-(-size // 4096) * 4096 for size in files)


def _mount(*arguments):
    done = subprocess.run(["mount", *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise MountError(done.stderr.strip())
