"""A worker process of a sweep: reads runs on standard input, reports on standard output.

One JSON object a line. It ends when its parent does: then either pipe breaks.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import sys
import time
import traceback
from pathlib import Path

from lrm.errors import UserError


def encode(job: tuple) -> str:
    """A job, (run, directory, folder of corpora), as one line of text."""
    return base64.b64encode(pickle.dumps(job)).decode()


def main() -> None:
    """Serve jobs until standard input ends."""
    # Nothing but reports may reach the parent.
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def tell(**message) -> None:
        channel.write(json.dumps(message) + "\n")

    import torch

    from lrm import brownian, train

    torch.set_num_threads(1)
    tell(ready=True)
    for line in sys.stdin:
        run, path, corpora = pickle.loads(base64.b64decode(line))
        told = 0.0

        def report(step: int, loss: float) -> None:
            nonlocal told
            if time.monotonic() - told > 0.3:
                told = time.monotonic()
                tell(step=step, loss=loss)

        def note(line: str) -> None:
            tell(note=line)

        try:
            if run.kind == "brownian":
                brownian.run(run, Path(path), Path(corpora), report)
            else:
                train.train(run, Path(path), Path(corpora), report, note=note)
            tell(done=True)
        except UserError as error:
            tell(error=str(error))
        except BrokenPipeError:
            os._exit(1)
        except Exception:
            tell(crash=traceback.format_exc())


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # the parent has gone
        os._exit(1)
