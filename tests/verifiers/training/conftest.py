"""Makes helper modules of this folder, and `conversations` of the token tests, importable by name."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent / "tokens"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
