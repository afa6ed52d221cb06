"""Makes the environments of this folder importable for their tests, even if they are not installed."""

import sys
from pathlib import Path

for folder in sorted(Path(__file__).parent.iterdir()):
    if (folder / "pyproject.toml").is_file() and str(folder) not in sys.path:
        sys.path.append(str(folder))
