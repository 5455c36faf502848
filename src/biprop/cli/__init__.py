"""The command line: `biprop check`, `cache`, `matrix`, `show`, `replay` and `keep`.

One module a command; `biprop.cli.main` assembles them and turns errors into one sentence and exit
code 2. Nothing here imports torch but `show --script` and `matrix`: kernels run in a worker
(`biprop.worker`).
"""

from biprop.cli.main import main

__all__ = ["main"]
