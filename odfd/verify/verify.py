"""Verifies one dataset: that its chain is consistent, and that its objects are what the chain says.

Synchronous, no daemon, no clock: works on a store and on a folder alike. How it goes along the chain is ``fold``'s.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from chain.errors import NotFound
from chain.store.base import ObjectReader, StoredChain
from odfd.verify.fold import Fold
from odfd.verify.queue import ObjectQueue
from odfd.verify.report import Level, OnProgress, VerificationRequest, VerificationResult
from odfd.verify.resume import Memory, Remembered

__all__ = ["VerificationRequest", "verify_chain"]


def verify_chain(
    chain: StoredChain,
    objects: ObjectReader,
    request: VerificationRequest,
    progress: OnProgress | None = None,
    memory: Memory | None = None,
) -> VerificationResult:
    """Raises NotFound when there is no chain or no block ``start``, Environment when our own disk fails.

    It ends at the head that the chain has when it begins, however far the chain grows meanwhile. What it finds wrong of
    a chain that is rewritten meanwhile says nothing: whoever has such a chain compares its history afterwards.

    ``memory``: what was verified before, and where to note what is verified now; without it nothing is.
    """
    snapshot = chain.snapshot()
    if snapshot is None:
        raise NotFound(f"{request.ref} has no blocks", rule="chain-empty")
    head, size = snapshot.head.hash, snapshot.head.size
    if request.start >= size:
        raise NotFound(
            f"{request.ref} has no block #{request.start}", rule="block-unknown", hint=f"its head is #{size - 1}"
        )
    remembered = memory.recall(chain) if memory is not None and request.level is Level.DATA else Remembered()
    with ThreadPoolExecutor(request.workers, thread_name_prefix="verify") as pool:
        queue = ObjectQueue(pool, objects, request.workers)
        fold = Fold(request, size, queue, progress or (lambda _: None), memory, remembered)
        try:
            for page in chain.stored_pages(0, size):
                fold.take_page(page)
            fold.finish(head)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return fold.answer(head)
