"""Whether a chain is what it says, and its objects are what it says of them: one verification, from request to answer.

Synchronous, no daemon, no clock: works on a store and on a folder alike. How it goes along the chain is ``fold``'s.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from chain.errors import NotFound
from chain.store.base import ObjectReader, StoredChain
from odfd.verify.fold import Fold
from odfd.verify.memory import Memory, NoMemory, Remembered
from odfd.verify.queue import ObjectQueue
from odfd.verify.report import Level, OnProgress, Request, Verification

__all__ = ["Request", "verify_chain"]


def verify_chain(
    chain: StoredChain,
    objects: ObjectReader,
    request: Request,
    progress: OnProgress | None = None,
    memory: Memory | None = None,
) -> Verification:
    """Raises NotFound when there is no chain or no block ``start``, Environment when our own disk fails.

    ``memory``: what was verified before, and where to note what is verified now; without it nothing is.
    """
    head = chain.stored_head()
    size = chain.stored_size()
    if head is None or size == 0:
        raise NotFound(f"{request.ref} has no blocks", rule="chain-empty")
    if request.start >= size:
        raise NotFound(
            f"{request.ref} has no block #{request.start}", rule="block-unknown", hint=f"its head is #{size - 1}"
        )
    kept = memory or NoMemory()
    remembered = kept.recall(chain) if request.level is Level.DATA else Remembered()
    with ThreadPoolExecutor(request.workers, thread_name_prefix="verify") as pool:
        queue = ObjectQueue(pool, objects, request.workers)
        fold = Fold(request, size, queue, progress or (lambda _: None), kept, remembered)
        try:
            for page in chain.stored_pages():
                fold.take_page(page)
            fold.finish(head)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return fold.answer(head)
